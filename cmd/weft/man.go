package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the manual pages that a package installs, or docs/cli.md. They are
// made from the help texts, and the same build writes the same bytes.
func (a *app) manCommand(b build) *cobra.Command {
	var markdown bool
	cmd := &cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write the manual pages",
		Example: "  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) weft man /usr/local/share/man/man1",
		Hidden:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && !markdown {
				return usage(cmd, "want one directory")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if markdown {
				_, err := io.WriteString(a.stdout, commandLinePage(cmd.Root()))
				return err
			}
			at, err := sourceDate(a.environ)
			if err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			verbatim(root)
			header := &doc.GenManHeader{Title: "WEFT", Section: "1", Source: "weft " + b.Version, Manual: "weft", Date: &at}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print the help of all commands as one page instead")
	return cmd
}

// sourceDate is the day of the pages: SOURCE_DATE_EPOCH as reproducible builds set it.
func sourceDate(environ []string) (time.Time, error) {
	for _, e := range environ {
		text, ok := strings.CutPrefix(e, "SOURCE_DATE_EPOCH=")
		if !ok {
			continue
		}
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return time.Time{}, &exitError{exitUsage, fmt.Sprintf("SOURCE_DATE_EPOCH is %q, want seconds", text)}
		}
		return time.Unix(seconds, 0).UTC(), nil
	}
	return time.Time{}, &exitError{exitUsage, "SOURCE_DATE_EPOCH is not set: the pages need a date"}
}

// verbatim keeps the columns of the help texts: the pages are made by way of Markdown,
// which runs lines together unless they are indented like code.
func verbatim(cmd *cobra.Command) {
	lines := strings.Split(cmd.Long, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, " ") {
			lines[i] = "    " + line
			if i > 0 && !strings.HasPrefix(lines[i-1], " ") && lines[i-1] != "" {
				lines[i] = "\n" + lines[i]
			}
		}
	}
	cmd.Long = strings.Join(lines, "\n")
	for _, sub := range cmd.Commands() {
		verbatim(sub)
	}
}
