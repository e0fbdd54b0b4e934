package config

import (
	"fmt"
	"strings"
)

// formerDrills are the variables with which the worker before weft was made to fail, by their
// beginnings, and the drill that does it now.
var formerDrills = []struct{ prefix, drill string }{
	{"OUTBOX_EXPERIMENT_ES_429", "es_429_inject"},
	{"OUTBOX_EXPERIMENT_ES_BULK_PARTIAL", "es_bulk_partial"},
	{"OUTBOX_EXPERIMENT_BREAK_CLAIM", "lab003_atomic_claim"},
	{"OUTBOX_EXPERIMENT_PROCESS_SLEEP", "stuck_reclaim"},
	{"OUTBOX_FAULT_INJECT", "es_write_block_4xx"},
}

// formerNames have nothing to set any more.
var formerNames = map[string]string{
	"OUTBOX_USE_ES_BULK": "weft always sends bulk requests; `weftlab run es_bulk_partial` shows one that succeeds in part",
	"OUTBOX_RUN_SECONDS": "weft runs until it is stopped; `timeout 60 weft run` bounds it",
	"OUTBOX_BATCH_SIZE":  "OUTBOX_BULK_SIZE sets it",
	// A number of another unit must not go where seconds are read.
	"OUTBOX_POLL_INTERVAL_MS":   "OUTBOX_POLL_INTERVAL_SECONDS sets it, in seconds",
	"OUTBOX_PROJECTION_VERSION": "CHRONICLE_PROJECTION_VERSION sets it",

	"OUTBOX_DB_PING_INTERVAL_SECONDS":      "the heartbeat of the leader stands in for it",
	"OUTBOX_DB_PING_TIMEOUT_SECONDS":       "the heartbeat of the leader stands in for it",
	"OUTBOX_DB_PING_FAILS_BEFORE_DRAINING": "a leader without Postgres leads no more",
	"OUTBOX_ES_PING_INTERVAL_SECONDS":      "weft probes Elasticsearch during an outage by itself",
	"OUTBOX_ES_PING_TIMEOUT_SECONDS":       "weft probes Elasticsearch during an outage by itself",
	"OUTBOX_HEALTH_MAX_SILENCE_SECONDS":    "/health/live watches every loop by itself",
}

// Former returns the warning about a variable of the worker before weft, or "" for any other.
func Former(name string) string {
	if now := formerNames[name]; now != "" {
		return fmt.Sprintf("environment name %s was one of the worker before weft and has no effect: %s", name, now)
	}
	for _, f := range formerDrills {
		if strings.HasPrefix(name, f.prefix) {
			return fmt.Sprintf("environment name %s injected a fault into the worker before weft and has no effect; the drill is `weftlab run %s`", name, f.drill)
		}
	}
	if strings.HasPrefix(name, "OUTBOX_EXPERIMENT_") {
		return fmt.Sprintf("environment name %s was an experiment of the worker before weft and has no effect; `weftlab list` names the drills", name)
	}
	return ""
}
