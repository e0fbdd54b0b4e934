package chaos

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Kind names a fault.
type Kind string

// The faults.
const (
	SIGKILL                  Kind = "sigkill"
	SIGTERM                  Kind = "sigterm"
	SIGSTOP                  Kind = "sigstop"
	Resign                   Kind = "resign"
	TerminateLock            Kind = "terminate-lock"
	TerminatePool            Kind = "terminate-pool"
	TerminateAll             Kind = "terminate-all"
	PartitionPostgres        Kind = "partition-postgres"
	LostAnswer               Kind = "lost-answer"
	PartitionElastic         Kind = "partition-elastic"
	PartitionBoth            Kind = "partition-both"
	LatencyPostgres          Kind = "latency-postgres"
	LatencyElastic           Kind = "latency-elastic"
	ResetMidBulk             Kind = "reset-mid-bulk"
	PostgresRestartFast      Kind = "postgres-restart-fast"
	PostgresRestartImmediate Kind = "postgres-restart-immediate"
	ElasticSIGKILL           Kind = "elastic-sigkill"
	ElasticRestart           Kind = "elastic-restart"
	Throttle429              Kind = "throttle-429"
	TooLarge413              Kind = "too-large-413"
	TruncatedBulk            Kind = "truncated-bulk"
	GarbledBulk              Kind = "garbled-bulk"
	WriteBlock               Kind = "write-block"
	AliasRemoved             Kind = "alias-removed"
	StrangerLock             Kind = "stranger-lock"
	LongSnapshot             Kind = "long-snapshot"
	DiskFull                 Kind = "disk-full"
	SkewedClock              Kind = "skewed-clock"
)

// measure says what of a fault is timed.
type measure string

const (
	nothing   measure = ""
	takeover  measure = "takeover"             // fault → first event settled under a newer epoch
	handover  measure = "after last settle"    // last event of the old term → first of the next
	restarted measure = "after the server was" // server takes work again → first settled event
)

// kindInfo is a row of the table of faults.
type kindInfo struct {
	kind    Kind
	about   string
	measure measure
	share   int  // of a deck of the schedule
	aimed   bool // at an instance: mostly the leader, sometimes a standby
	servers bool // needs servers that may be stopped

	// carryOut injects the fault into a member, or around it, waits for its effect and heals it.
	carryOut func(*run, context.Context, *member, *injection) error
}

func kindTable() []kindInfo {
	return []kindInfo{
		{SIGKILL, "an instance is killed, and started again by its supervisor", takeover, 3, true, false, (*run).kill},
		{SIGTERM, "an instance is asked to stop, and started again", handover, 2, true, false, (*run).terminate},
		{Resign, "the leader is asked to hand over (weft resign)", handover, 2, false, false, (*run).resign},
		{SIGSTOP, "the leader is frozen for longer than the server waits for a silent session", takeover, 1, false, false, (*run).freeze},
		{TerminateLock, "the server ends the leader's lock session", takeover, 2, false, false, (*run).endSessions},
		{TerminatePool, "the server ends all of an instance's sessions but the lock session", nothing, 1, true, false, (*run).endSessions},
		{TerminateAll, "the server ends all sessions of the leader", takeover, 1, false, false, (*run).endSessions},
		{PartitionPostgres, "no byte passes between the leader and PostgreSQL, and no connection ends", takeover, 1, false, false, (*run).network},
		{LostAnswer, "PostgreSQL's answers to the leader are lost on their way, and then it is away", takeover, 1, false, false, (*run).network},
		{PartitionElastic, "no byte passes between the leader and Elasticsearch, and no connection ends", nothing, 1, false, false, (*run).network},
		{PartitionBoth, "no byte passes between the leader and both servers", takeover, 1, false, false, (*run).network},
		{LatencyPostgres, "50 ms to 3 s more between an instance and PostgreSQL", nothing, 1, true, false, (*run).network},
		{LatencyElastic, "50 ms to 3 s more between an instance and Elasticsearch", nothing, 1, true, false, (*run).network},
		{ResetMidBulk, "connections are reset in the middle of bulk requests", nothing, 1, false, false, (*run).network},
		{PostgresRestartFast, "PostgreSQL is stopped and started", restarted, 1, false, true, (*run).restartPostgres},
		{PostgresRestartImmediate, "PostgreSQL is stopped without a checkpoint and recovers", restarted, 1, false, true, (*run).restartPostgres},
		{ElasticSIGKILL, "Elasticsearch is killed and started", restarted, 1, false, true, (*run).restartElastic},
		{ElasticRestart, "Elasticsearch is stopped and started", restarted, 1, false, true, (*run).restartElastic},
		{Throttle429, "Elasticsearch refuses requests and documents with 429", nothing, 1, false, false, (*run).falsify},
		{TooLarge413, "requests above a few KB are refused with 413", nothing, 1, false, false, (*run).falsify},
		{TruncatedBulk, "answers to bulk requests end in their middle", nothing, 1, false, false, (*run).falsify},
		{GarbledBulk, "answers to bulk requests are no JSON, lack items or name others", nothing, 1, false, false, (*run).falsify},
		{WriteBlock, "the index is blocked for writes", nothing, 1, false, false, (*run).blockWrites},
		{AliasRemoved, "the alias of the index is removed and put back", nothing, 1, false, false, (*run).removeAlias},
		{StrangerLock, "somebody else holds row locks on pending events", nothing, 1, false, false, (*run).lockRows},
		{LongSnapshot, "a snapshot stays open, up to ten minutes, while other faults go on", nothing, 1, false, false, (*run).openSnapshot},
		{DiskFull, "Elasticsearch refuses writes because its disk is full", nothing, 1, false, false, (*run).falsify},
		{SkewedClock, "an instance whose wall clock is five minutes off leads", nothing, 1, false, false, (*run).skew},
	}
}

func infoOf(k Kind) kindInfo {
	t := kindTable()
	return t[slices.IndexFunc(t, func(i kindInfo) bool { return i.kind == k })]
}

// List writes the faults and what they do.
func List(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, i := range kindTable() {
		fmt.Fprintf(tw, "%s\t%s\n", i.kind, i.about)
	}
	_ = tw.Flush()
}

// kindList is the value of --only.
type kindList []Kind

// Set implements pflag.Value; a name may be given once more to weigh it.
func (l *kindList) Set(text string) error {
	*l = nil
	for name := range strings.SplitSeq(text, ",") {
		k := Kind(strings.TrimSpace(name))
		if !slices.ContainsFunc(kindTable(), func(i kindInfo) bool { return i.kind == k }) {
			return fmt.Errorf("no fault is named %q; --list names them", k)
		}
		*l = append(*l, k)
	}
	return nil
}

// String implements pflag.Value.
func (l *kindList) String() string {
	names := make([]string, len(*l))
	for i, k := range *l {
		names[i] = string(k)
	}
	return strings.Join(names, ",")
}

// Type implements pflag.Value.
func (l *kindList) Type() string { return "FAULT,…" }
