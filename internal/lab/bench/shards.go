package bench

import (
	"context"
	"errors"
	"strconv"
)

// shardSettings names the schemas of n shards after that of the site, and returns the settings
// that say so.
func (s *site) shardSettings(n int) []string {
	prefix := s.Schema + "_shard_"
	for i := range n {
		s.shards = append(s.shards, prefix+strconv.Itoa(i))
	}
	return []string{"WEFT_SHARDS=" + strconv.Itoa(n), "WEFT_SHARDS_PREFIX=" + prefix}
}

// dropShards removes the schemas of shards, which are not in that of the site.
func (s *site) dropShards() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Ctx), queryTimeout)
	defer cancel()
	var errs []error
	for _, schema := range s.shards {
		errs = append(errs, s.place.Remove(ctx, schema, "", ""))
	}
	return errors.Join(errs...)
}
