package verdict

import (
	"fmt"
	"strings"
)

// Count is a figure of a run that must be 0, with what it counts: {2, "lost events"}.
type Count struct {
	N    int
	What string
}

// Clean returns nil when every count is 0 and nothing else is wrong. Otherwise the error
// says of what ("the run"), which counts are not 0, and what else is wrong.
func Clean(of string, counts []Count, wrong ...string) error {
	var bad []string
	for _, c := range counts {
		if c.N != 0 {
			bad = append(bad, fmt.Sprintf("%d %s", c.N, c.What))
		}
	}
	if bad = append(bad, wrong...); len(bad) > 0 {
		return fmt.Errorf("%s is not clean: %s", of, strings.Join(bad, ", "))
	}
	return nil
}
