package drill

// Runbooks returns the paths of the runbooks that a drill rehearses, from the top of the
// repository; none for a drill of what weft does not do.
func Runbooks(scenario string) []string {
	names := map[string][]string{
		"es_down_connect":         {"elasticsearch-down"},
		"es_429_inject":           {"throttled"},
		"es_write_block_4xx":      {"dead-letter-growing", "replay"},
		"es_bulk_partial":         {"dead-letter-growing"},
		"db_claim_contention":     {"lag-growing", "stuck-processing"},
		"stuck_reclaim":           {"stuck-processing"},
		"duplicate_delivery":      {"reasons"},
		"projection_version":      {"index-rebuild"},
		"entity_quarantined":      {"lag-growing"},
		"projection_throttled":    {"lag-growing"},
		"documents_differ":        {"documents-differ"},
		"rebuild_under_load":      {"index-rebuild"},
		"rebuild_leader_killed":   {"index-rebuild"},
		"rebuild_elastic_restart": {"index-rebuild"},
		"collector_down":          {"log-events"},
		"lab003_skip_locked":      {"lag-growing"},
		"leader_sigterm":          {"planned-switchover"},
		"leader_sigkill":          {"no-leader"},
		"leader_sigstop":          {"frozen-leader"},
		"lock_session_killed":     {"leader-flapping"},
		"leader_partition":        {"no-leader"},
		"pg_restart":              {"postgres-failover"},
		"es_restart":              {"elasticsearch-down"},

		"elastic_node_killed":            {"elasticsearch-down"},
		"elastic_master_killed":          {"elasticsearch-down"},
		"elastic_node_frozen":            {"elasticsearch-down"},
		"elastic_rolling_restart":        {"elasticsearch-down"},
		"elastic_node_cut_off":           {"elasticsearch-down"},
		"elastic_wait_for_active_shards": {"elasticsearch-down"},
		"elastic_shard_moved":            {"lag-growing"},
		"elastic_disk_watermark":         {"throttled"},
	}[scenario]
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = "docs/runbooks/" + name + ".md"
	}
	return paths
}
