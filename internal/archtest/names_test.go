package archtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/config"
)

// frozen reads the public names of the tree from its code, its files and its programs.
func frozen(t *testing.T) names {
	t.Helper()
	n := names{}
	for _, p := range packages(t) {
		parsed := files(t, p)
		for _, f := range parsed {
			switch {
			case p.path() == "projections/elastic": // its JSON is Elasticsearch's
				n.fromCode(f, constants(parsed))
			case p.production():
				n.fromCode(f, constants(parsed))
				n.fields(f, "json")
			default:
				n.fields(f, "key")
				n.evidence(f)
			}
			if p.Name == "main" {
				n.exitCodes(f, p.path())
			}
		}
	}
	n.fromFiles(t)
	n.fromPrograms(t)
	for _, cell := range quoted.FindAllStringSubmatch(config.Markdown(), -1) {
		n.add("setting", cell[1])
	}
	return n
}

var (
	word         = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	metric       = regexp.MustCompile(`^(weft|outbox|projection)_[a-z0-9_]+$`)
	evidenceFile = regexp.MustCompile(`^_?[a-z][a-z0-9_-]*\.(json|jsonl|txt|html|svg|log|csv|yaml)$`)
	quoted       = regexp.MustCompile("`([^`]+)`")
)

// constants returns the string constants of a package.
func constants(parsed map[string]*ast.File) map[string]string {
	out := map[string]string{}
	for _, f := range parsed {
		ast.Inspect(f, func(node ast.Node) bool {
			if spec, ok := node.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
				for i, name := range spec.Names {
					out[name.Name] = literal(spec.Values[i])
				}
			}
			return true
		})
	}
	return out
}

// fromCode adds the log keys and events, metrics, spans, attributes, SQL names and stored
// values of a file.
func (n names) fromCode(f *ast.File, consts map[string]string) {
	value := func(e ast.Expr) string {
		if s := literal(e); s != "" {
			return s
		}
		return consts[exprName(e)]
	}
	n.add("event", eventsIn(f)...)
	ast.Inspect(f, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CallExpr:
			sel, ok := node.Fun.(*ast.SelectorExpr)
			if !ok || exprName(sel.X) == "prometheus" {
				n.metric(node)
			}
			if !ok || len(node.Args) == 0 {
				return true
			}
			switch of := exprName(sel.X); {
			case of == "zap" || of == "enc" && strings.HasPrefix(sel.Sel.Name, "Add"):
				if key := value(node.Args[0]); word.MatchString(key) {
					n.add("logkey", key)
				}
			case of == "attribute":
				n.add("attribute", value(node.Args[0]))
			case sel.Sel.Name == "Start" && len(node.Args) > 1:
				n.add("span", value(node.Args[1]))
			}
		case *ast.ValueSpec:
			for i, v := range node.Values {
				if _, typed := node.Type.(*ast.Ident); typed || storedConst.MatchString(node.Names[i].Name) {
					n.add("value", literal(v))
				}
			}
		case *ast.CompositeLit: // a column of a table: name, type …
			if len(node.Elts) > 1 && columnType.MatchString(value(field(node, 1))) {
				n.add("column", value(field(node, 0)))
			}
		case *ast.BasicLit:
			s, err := strconv.Unquote(node.Value)
			if err == nil && node.Kind == token.STRING {
				n.sql(s)
			}
			if f.Name.Name == "migrations" && objectName.MatchString(s) {
				n.add("sql", s)
			}
		}
		return true
	})
}

// field returns an element of a composite literal, with or without its name.
func field(c *ast.CompositeLit, i int) ast.Expr {
	if kv, ok := c.Elts[i].(*ast.KeyValueExpr); ok {
		return kv.Value
	}
	return c.Elts[i]
}

// exitCodes adds the constants of a program that are named exit….
func (n names) exitCodes(f *ast.File, program string) {
	ast.Inspect(f, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "exit") && len(spec.Values) == 1 {
			if number, ok := spec.Values[0].(*ast.BasicLit); ok {
				n.add("exit", program+" "+number.Value)
			}
		}
		return true
	})
}

// metric adds the metric that a call makes, with the labels that the call names.
func (n names) metric(call *ast.CallExpr) {
	name, labels := "", []string{}
	for i, arg := range call.Args {
		if s := literal(arg); i == 0 && metric.MatchString(s) {
			name = s
		} else if word.MatchString(s) {
			labels = append(labels, s)
		}
		c, ok := arg.(*ast.CompositeLit)
		if !ok {
			continue
		}
		for _, e := range c.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok && exprName(kv.Key) == "Name" && metric.MatchString(literal(kv.Value)) {
				name = literal(kv.Value)
			} else if s := literal(e); word.MatchString(s) {
				labels = append(labels, s)
			}
		}
	}
	if name != "" {
		n.add("metric", strings.TrimSpace(name+" "+strings.Join(labels, " ")))
	}
}

var (
	sqlObject   = regexp.MustCompile(`(?i)\bcreate (?:or replace )?(table|view|function|trigger)(?: if not exists)? (?:\{schema\}\.)?([a-z][a-z0-9_]+)`)
	sqlColumn   = regexp.MustCompile(`(?m)(?:^\s+|add column )([a-z][a-z_]*) +(?:uuid|bigint|text|jsonb|integer|boolean|varchar\(\d+\)|timestamptz)\b`)
	sqlValue    = regexp.MustCompile(`'([a-z][a-z_]+)'`)
	objectName  = regexp.MustCompile(`^(weft|ix|idx)_[a-z0-9_]+$`)
	columnType  = regexp.MustCompile(`^(uuid|text|jsonb|integer|bigint|double precision|character varying|timestamp)`)
	storedConst = regexp.MustCompile(`^(?i)(action|outcome|reason|result|reading|stage|task|prune|mode|broken|interrupted|finished)`)
	sqlVerb     = regexp.MustCompile(`(?i)\b(select|insert into|update|delete from|create) `)
)

// sql adds the objects and columns that a statement makes.
func (n names) sql(text string) {
	if !sqlVerb.MatchString(text) {
		return
	}
	for _, m := range sqlObject.FindAllStringSubmatch(text, -1) {
		n.add("sql", strings.ToLower(m[1])+" "+m[2])
	}
	if strings.Contains(text, "weft_audit") {
		n.quoted(text)
	}
	for _, m := range sqlColumn.FindAllStringSubmatch(text, -1) {
		n.add("column", m[1])
	}
}

// quoted adds the words that a statement compares or stores.
func (n names) quoted(text string) {
	for _, m := range sqlValue.FindAllStringSubmatch(text, -1) {
		n.add("value", m[1])
	}
}

// fields adds the JSON fields of each struct, of kind json in one line and else one by one.
func (n names) fields(f *ast.File, kind string) {
	ast.Inspect(f, func(node ast.Node) bool {
		s, ok := node.(*ast.StructType)
		if !ok {
			return true
		}
		var keys []string
		for _, f := range s.Fields.List {
			if f.Tag != nil {
				key, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
				keys = append(keys, strings.Trim(key, "-"))
			}
		}
		keys = slices.DeleteFunc(keys, func(k string) bool { return k == "" })
		slices.Sort(keys)
		if kind == "json" {
			keys = []string{strings.Join(keys, " ")}
		}
		n.add(kind, keys...)
		return true
	})
}

// evidence adds the names of the files that the workshop writes.
func (n names) evidence(f *ast.File) {
	ast.Inspect(f, func(node ast.Node) bool {
		if l, ok := node.(*ast.BasicLit); ok && evidenceFile.MatchString(filepath.Base(literal(l))) {
			n.add("evidence", filepath.Base(literal(l)))
		}
		return true
	})
}

// fromFiles adds SQL, alerts, runbooks, what the package installs, and files whose content is
// frozen.
func (n names) fromFiles(t *testing.T) {
	t.Helper()
	walk(t, ".sql", func(path string) {
		if strings.HasPrefix(path, tree+"/examples/") {
			return // an application's names
		}
		text := read(t, path)
		n.sql(text)
		n.quoted(text)
	})
	matches := func(kind, path, pattern string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, filepath.Join(tree, path)), -1) {
			n.add(kind, m[1])
		}
	}
	matches("alert", "deploy/prometheus/rules/weft.alerts.yaml", `alert: (\w+)`)
	matches("package", "deploy/deb/nfpm.yaml", `(?m)^name: (\S+)`)
	matches("package", "deploy/deb/nfpm.yaml", `dst: "?([^,"]+)`)
	glob := func(pattern string, f func(path, name string)) {
		found, err := filepath.Glob(filepath.Join(tree, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: got %d files (%v), want some", pattern, len(found), err)
		}
		for _, path := range found {
			f(path, strings.TrimPrefix(path, tree+"/"))
		}
	}
	content := func(path, name string) {
		n.add("content", fmt.Sprintf("%s %x", name, sha256.Sum256([]byte(read(t, path)))))
	}
	glob("projections/elastic/*mapping*.json", content)
	glob("migrations/*.sql", content)
	glob("docs/runbooks/*.md", func(path, name string) {
		n.add("runbook", name)
		for _, m := range regexp.MustCompile(`(?m)^#+ (.+)`).FindAllStringSubmatch(read(t, path), -1) {
			anchor := regexp.MustCompile("[^a-z0-9 _-]").ReplaceAllString(strings.ToLower(m[1]), "")
			n.add("anchor", name+"#"+strings.ReplaceAll(anchor, " ", "-"))
		}
	})
}

var (
	subcommand = regexp.MustCompile(`(?m)^  ([a-z]+) `)
	flagLine   = regexp.MustCompile(`(?m)^ +(?:-\w, +)?--([a-z][a-z0-9-]*)`)
	listed     = regexp.MustCompile(`(?m)^([a-z][a-z0-9_-]+)`)
	parameter  = regexp.MustCompile(`(?m)^  set +(\w+)=`)
)

// fromPrograms adds commands and flags, drills with their parameters, faults and scenarios.
func (n names) fromPrograms(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	bin := t.TempDir()
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
		return string(out)
	}
	run("go", "build", "-ldflags=-s -w", "-o", bin+"/", module+"/cmd/weft", module+"/cmd/weftlab")
	var walk func(path ...string)
	walk = func(path ...string) {
		help := run(filepath.Join(bin, path[0]), append(path[1:len(path):len(path)], "--help")...)
		at := strings.Join(path, " ")
		n.add("command", at)
		for _, m := range flagLine.FindAllStringSubmatch(help, -1) {
			n.add("flag", at+" --"+m[1])
		}
		if at == "weftlab systemd" {
			_, only, _ := strings.Cut(help, "these drills only: ")
			only, _, _ = strings.Cut(only, "\n")
			for _, name := range strings.Split(only, ", ") {
				n.add("systemd-drill", name)
			}
		}
		_, list, found := strings.Cut(help, "\nAvailable Commands:\n")
		if _, scenarios, ok := strings.Cut(help, "\nScenarios:\n"); ok && at == "weftlab bench" {
			scenarios, _, _ = strings.Cut(scenarios, "\n\n")
			for _, line := range strings.Split(scenarios, "\n") {
				n.add("scenario", strings.Fields(line)[0])
			}
		}
		list, _, _ = strings.Cut(list, "\n\n")
		for _, m := range subcommand.FindAllStringSubmatch(list, -1) {
			if found && m[1] != "help" {
				walk(append(path[:len(path):len(path)], m[1])...)
			}
		}
	}
	walk("weft")
	walk("weftlab")
	for _, m := range listed.FindAllStringSubmatch(run(filepath.Join(bin, "weftlab"), "chaos", "--list"), -1) {
		n.add("fault", m[1])
	}
	drill := ""
	for _, line := range strings.Split(run(filepath.Join(bin, "weftlab"), "list"), "\n") {
		if m := listed.FindStringSubmatch(line); m != nil {
			drill = m[1]
			n.add("drill", drill)
		} else if m := parameter.FindStringSubmatch(line); m != nil {
			n.add("drill", drill+" "+m[1])
		}
	}
}
