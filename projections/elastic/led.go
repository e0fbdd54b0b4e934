package elastic

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Led names the term whose leader writes into an index. Leaders of two databases have two, also where one is a copy of the other.
type Led struct {
	Epoch    int64     `json:"epoch"`
	Instance string    `json:"instance"`
	Began    time.Time `json:"began"`  // as weft_term has it
	Marked   time.Time `json:"marked"` // when the leader wrote this
}

// Same reports whether two marks are one writing of one mark.
func (l Led) Same(as Led) bool {
	return l.OfTerm(as.Epoch, as.Instance, as.Began) && l.Marked.Equal(as.Marked)
}

// OfTerm reports whether a leader has written the mark in a term.
func (l Led) OfTerm(epoch int64, instance string, began time.Time) bool {
	return l.Epoch == epoch && l.Instance == instance && l.Began.Equal(began)
}

// LedKey is where the leaders of a group mark the index of a projection. Shards and projections that share an index have
// one each.
func LedKey(group, projection string) string { return group + "/" + projection }

// LedOf returns the mark of a key in the mapping of an index, as a look for it has found it.
func LedOf(mapping json.RawMessage, key string) (led Led, marked bool) {
	var info struct {
		Meta struct {
			Weft weftMeta `json:"weft"`
		} `json:"_meta"`
	}
	if json.Unmarshal(mapping, &info) == nil {
		led, marked = info.Meta.Weft.Led[key]
	}
	return led, marked
}

// Led returns the mark that the last look has found in the index. Its Epoch is 0 where there is none.
func (s *Sink) Led(key string) Led {
	s.target.Lock()
	defer s.target.Unlock()
	return s.target.last.info.Mappings.Meta.Weft.Led[key]
}

// MarkLed writes a mark into the index. Where somebody else changes _meta in the same moment, as the leader of another shard
// does, one of the two changes is lost: such a change replaces the whole of it.
func (s *Sink) MarkLed(ctx context.Context, key string, led Led) error {
	at, have, err := s.present(ctx)
	if err != nil {
		return err
	}
	meta, ours, err := metaOf(have)
	if err != nil {
		return s.unreadable("mapping", err)
	}
	marks, _ := ours["led"].(map[string]any)
	if marks == nil {
		marks = map[string]any{}
	}
	marks[key], ours["led"] = led, marks
	body, err := json.Marshal(map[string]any{"_meta": meta})
	if err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	return s.sendMapping(ctx, at.index, body)
}
