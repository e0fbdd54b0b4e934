package main

import (
	"fmt"
	"io"

	"github.com/samuelhu324-dev/weft/internal/records"
)

func writeStories(w io.Writer, found []records.Story) error {
	for i, e := range found {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := writeStory(w, e); err != nil {
			return err
		}
	}
	return nil
}

func writeStory(w io.Writer, e records.Story) error {
	replayed := "never"
	if e.Replays > 0 {
		replayed = fmt.Sprintf("%d×, last at %s by %s: %s", e.Replays, records.Clock(e.ReplayedAt), records.Dash(records.Plain(e.ReplayedBy)), records.Dash(records.Plain(e.ReplayReason)))
	}
	attempts := fmt.Sprintf("%d", e.Attempts)
	if e.Reclaims > 0 {
		attempts += records.Counted(e.Reclaims, ", and taken back once since it was last settled", ", and taken back %d times in a row since it was last settled")
	}
	lines := [][2]string{
		{"event", e.ID}, {"where", e.Where()}, {"projection", e.Projection + ", table " + e.Table},
		{"entity", records.Plain(e.EntityType + ":" + e.EntityID)}, {"op", fmt.Sprintf("%s, version %d", records.Plain(e.Op), e.EventVersion)},
		{"created", records.Clock(e.CreatedAt)}, {"attempts", attempts},
	}
	if e.Reason != "" || e.Error != "" {
		lines = append(lines, [2]string{"reason", records.Dash(records.Plain(e.Reason))}, [2]string{"error", records.Dash(records.Plain(e.Error))})
	}
	if e.DiscardedAt != nil {
		lines = append(lines, [2]string{"discarded", discardedLine(e.DiscardedAt, e.DiscardedBy, e.DiscardReason)})
	}
	if e.Quarantine != nil {
		lines = append(lines, [2]string{"quarantine", e.Quarantine.Line()})
	}
	lines = append(lines, [2]string{"replayed", replayed}, [2]string{"trace", records.Dash(e.TraceID)})
	for i, b := range e.Before {
		what := ""
		if i == 0 {
			what = "before it"
		}
		lines = append(lines, [2]string{what, b.Line()})
	}
	if e.BeforeMore {
		lines = append(lines, [2]string{"", "and more"})
	}
	if err := writePairs(w, lines); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\n"+records.Cell(e.Advice))
	return err
}
