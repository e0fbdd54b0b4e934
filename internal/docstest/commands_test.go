package docstest

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mvdan.cc/sh/v3/syntax"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// inline is a command in the middle of a sentence.
var inline = regexp.MustCompile("`([A-Z_]+=[^`]* )?(weft|weftlab) [^`]*`")

// TestCommands asks every command line of the documents for its help, so that a command
// or flag that is not there fails, and a few that must.
func TestCommands(t *testing.T) {
	t.Parallel()
	bin := filepath.Dir(testenv.Program(t, "weft"))
	testenv.Program(t, "weftlab") // beside it
	t.Run("OfTheDocuments", func(t *testing.T) {
		t.Parallel()
		asked := map[string]bool{}
		for _, p := range documents(t) {
			lines, err := commands(p)
			if err != nil {
				t.Error(err)
			}
			for _, argv := range lines {
				text := strings.Join(argv, " ")
				if asked[text] {
					continue
				}
				asked[text] = true
				if err := ask(t.Context(), bin, argv); err != nil {
					t.Errorf("%s: %s: %v", p.name, text, err)
				}
			}
		}
		if len(asked) < 25 {
			t.Errorf("got %d command lines, want those of all documents", len(asked))
		}
	})
	for name, c := range map[string]struct{ line, want string }{
		"Good":         {`weft replay --reason es_4xx --since 2h --dry-run`, ""},
		"Argument":     {`weft failed show 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11`, ""},
		"Quoted":       {`weft resign --why "a b --c"`, ""},
		"Environment":  {`WEFT_INSTANCE=a weft run 2>a.log &`, ""},
		"Piped":        {`weft failed list --json | jq -r .listed[].id`, ""},
		"OfAnother":    {`weftlab stack -- weft frobnicate`, ""},
		"NoCommand":    {`weft reply`, "no command"},
		"NoSubcommand": {`weft failed lst`, "no command"},
		"NoFlag":       {`weft replay --everything`, "unknown flag"},
		"BadValue":     {`weft resign --wait soon --why x`, "want a duration"},
		"NoArguments":  {`weft status now`, "takes no argument"},
		"LabFlag":      {`weftlab chaos --sed 1`, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, err := commands(read("x.md", "```sh\n"+c.line+"\n```\n"))
			if err != nil || len(lines) != 1 {
				t.Fatalf("got %q (%v), want one command", lines, err)
			}
			err = ask(t.Context(), bin, lines[0])
			if got := fmt.Sprint(err); (err == nil) != (c.want == "") || err != nil && !strings.Contains(got, c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// commands returns the words of the command lines of weft and weftlab in a document.
func commands(p page) ([][]string, error) {
	var all [][]string
	add := func(where, text string) error {
		file, err := syntax.NewParser().Parse(strings.NewReader(text), where)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		syntax.Walk(file, func(n syntax.Node) bool {
			call, ok := n.(*syntax.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			argv := make([]string, len(call.Args))
			for i, w := range call.Args {
				argv[i] = word(w)
			}
			if argv[0] == "weft" || argv[0] == "weftlab" {
				all = append(all, argv)
			}
			return true
		})
		return nil
	}
	for _, b := range p.blocks {
		text := b.text
		switch b.language {
		case "sh", "bash":
		case "console":
			text = typed(text)
		default:
			continue
		}
		if err := add(p.at(b), text); err != nil {
			return nil, err
		}
	}
	for _, m := range inline.FindAllString(outside(p), -1) {
		if err := add(p.name, strings.Trim(m, "`")); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// word is what the shell makes of a word; a variable stands for itself.
func word(w *syntax.Word) string {
	var s strings.Builder
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Lit:
			s.WriteString(n.Value)
		case *syntax.SglQuoted:
			s.WriteString(n.Value)
		case *syntax.ParamExp, *syntax.CmdSubst:
			s.WriteString("1")
			return false
		}
		return true
	})
	return s.String()
}

// typed returns what follows the prompts of a console block, with here-documents.
func typed(text string) string {
	var out strings.Builder
	end := ""
	for line := range strings.Lines(text) {
		command, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case prompt:
			out.WriteString(command)
			if _, doc, ok := strings.Cut(command, "<<'"); ok {
				end, _, _ = strings.Cut(doc, "'")
			} else if strings.Count(command, `"`)%2 == 1 {
				end = `"`
			}
		case end != "":
			out.WriteString(line)
			if strings.TrimSpace(line) == end || end == `"` && strings.Contains(line, end) {
				end = ""
			}
		}
	}
	return out.String()
}

// outside is a page without its blocks.
func outside(p page) string {
	text := p.text
	for _, b := range p.blocks {
		text = strings.Replace(text, b.text, "", 1)
	}
	return strings.ReplaceAll(text, "```", "\n")
}

var usage = regexp.MustCompile(`(?m)^Usage:\n  (.*)$`)

// ask runs a command line with --help, and compares its words with those of the help: a
// group of commands prints its help whatever follows its name.
func ask(ctx context.Context, bin string, argv []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	own := argv
	if i := slices.Index(argv, "--"); i >= 0 {
		own = argv[:i]
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, own[0]), append(slices.Clone(own[1:]), "--help")...)
	cmd.Env = []string{"HOME=" + bin} // settings of another deployment are not asked for
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	m := usage.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("the help shows no usage:\n%s", out)
	}
	words := strings.Fields(string(m[1]))
	n := 0 // words of the command's own name
	for n < len(words) && n < len(own) && words[n] == own[n] {
		n++
	}
	more := n < len(own) && !strings.HasPrefix(own[n], "-")
	switch {
	case !more:
		return nil
	case strings.Contains(string(out), "\nAvailable Commands:") && (n == len(words) || strings.HasPrefix(words[n], "[")):
		return fmt.Errorf("there is no command %q in %s", own[n], strings.Join(own[:n], " "))
	case n == len(words) || slices.Equal(words[n:], []string{"[flags]"}):
		return fmt.Errorf("%s takes no argument %q", strings.Join(own[:n], " "), own[n])
	}
	return nil
}
