package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/samuelhu324-dev/weft/internal/config"
)

// commandLinePage returns docs/cli.md: the exit codes and the help of each command. It
// names the flags that are settings and leaves their meaning to docs/configuration.md.
func commandLinePage(root *cobra.Command) string {
	var b strings.Builder
	about, codes, _ := strings.Cut(root.Long, "\n\nExit codes:\n")
	fmt.Fprintf(&b, `# The command line

<!-- Written by make docs from the help of the commands. -->

%s

Every command takes `+"`--config FILE` and `--help`"+`. Flags that set a setting mean the same in each command; the
[configuration](configuration.md) explains them. `+"`man weft`"+` has the same pages where the Debian package is installed.

## Exit codes

`+"```text\n%s\n```"+`

2 is what Go itself exits with after a panic; weft gives it no meaning. `+"`weft run`"+` outlives an unreachable Postgres or
Elasticsearch, at start and later: it stays up, is not ready, says why once, and goes on when they are back.
`, about, codes)
	settings := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	config.AddFlags(settings)
	for _, c := range root.Commands() {
		writeCommand(&b, c, settings)
	}
	return b.String()
}

// writeCommand writes the section of c and those of the commands below it.
func writeCommand(b *strings.Builder, c *cobra.Command, settings *pflag.FlagSet) {
	if !c.IsAvailableCommand() || c.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s.\n", c.CommandPath(), c.Short)
	if c.Long != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", c.Long)
	}
	fmt.Fprintf(b, "\nUsage: `%s`\n\n```sh\n", c.UseLine())
	for line := range strings.Lines(c.Example) {
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	b.WriteString("\n```\n")
	own, shared := pflag.NewFlagSet(c.Name(), pflag.ContinueOnError), []string{}
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == "help":
		case settings.Lookup(f.Name) != nil:
			shared = append(shared, "`--"+f.Name+"`")
		default:
			own.AddFlag(f)
		}
	})
	if own.HasFlags() {
		fmt.Fprintf(b, "\n```text\n%s```\n", own.FlagUsages())
	}
	total := 0
	settings.VisitAll(func(*pflag.Flag) { total++ })
	switch len(shared) {
	case 0:
	case total:
		b.WriteString("\nSettings: all of them.\n")
	default:
		fmt.Fprintf(b, "\nSettings: %s.\n", strings.Join(shared, ", "))
	}
	for _, sub := range c.Commands() {
		writeCommand(b, sub, settings)
	}
}
