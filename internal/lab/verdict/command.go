package verdict

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// Command returns `weftlab report`.
func Command() *cobra.Command {
	var root, run string
	cmd := &cobra.Command{
		Use:   "report SCENARIO|DIR",
		Short: "Make one page for a browser of a drill's evidence",
		Long: `Write report.html into the directory of a run: recipe, timeline with terms of leadership
and faults, charts of the metrics, assertions (after verify), events with their traces,
what the logs say. The page needs no network; with JAEGER_URL it has links to the traces
there.`,
		Example: `  weftlab report es_429_inject
  weftlab report evidence/es_429_inject/20261121T164207Z`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := directory(root, args[0], run)
			if err != nil {
				return err
			}
			if err := WritePage(d, os.Getenv("JAEGER_URL")); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(d.String(), ReportFile))
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "evidence", "evidence", "`DIR` of the evidence")
	cmd.Flags().StringVar(&run, "run", "", "the run to look at (default the newest)")
	return cmd
}

// directory is that of a run: itself, or the one of a scenario.
func directory(root, named, run string) (Dir, error) {
	if _, err := os.Stat(filepath.Join(named, RecipeFile)); err == nil && run == "" {
		path, err := filepath.Abs(named)
		if err != nil {
			return Dir{}, fmt.Errorf("report: %w", err)
		}
		return Dir{Path: path, Scenario: filepath.Base(filepath.Dir(path)), Run: filepath.Base(path)}, nil
	}
	d, err := Find(root, named, run)
	if errors.Is(err, ErrNone) {
		err = fmt.Errorf("%w; name a scenario or the directory of a run", err)
	}
	return d, err
}
