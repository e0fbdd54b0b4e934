package console

import (
	"encoding/json"
	"fmt"
	"os"
)

// WriteResult writes what a run has found to a file, as JSON for scripts.
func WriteResult(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}
