package outbox

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

// Each statement on outbox tables is whole in a file, with its parameters described.
//
//go:embed sql/*.sql
var files embed.FS

// statements are the texts with a table's names filled in, so that each call sends the
// same string and meets the same prepared statement.
type statements map[string]string

// loadStatements returns the statements for t, by the names of their files.
func loadStatements(t *Table) statements {
	out := statements{}
	entries, err := files.ReadDir("sql")
	if err != nil {
		panic("outbox: embedded statements: " + err.Error()) // a broken build
	}
	fill := t.gaps()
	parts := strings.NewReplacer("{fence}", statement("fence"), "{record}", statement("record"), "{reclaimed}", statement("reclaimed"), "{suspect}", statement("suspect"))
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".sql")
		out[name] = fill.Replace(parts.Replace(statement(name)))
	}
	return out
}

// statement returns a file without its comments.
func statement(name string) string {
	raw, err := files.ReadFile(path.Join("sql", name+".sql"))
	if err != nil {
		panic("outbox: embedded statements: " + err.Error()) // a broken build
	}
	var lines []string
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

// get returns the statement of a file; a name without one is a mistake in this package.
func (s statements) get(name string) string {
	text, ok := s[name]
	if !ok {
		panic(fmt.Sprintf("outbox: no statement is named %q", name))
	}
	return text
}
