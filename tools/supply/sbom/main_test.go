package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// schema is CycloneDX's own, as its Go module has it.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir := filepath.Join(output(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go"), "schema")
	const id = "http://cyclonedx.org/schema/"
	compiler := jsonschema.NewCompiler()
	for name, file := range map[string]string{"bom-1.6.schema.json": "", "spdx.schema.json": "", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		text, err := os.ReadFile(filepath.Join(dir, cmp.Or(file, name)))
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := compiler.AddResource(id+name, document); err != nil {
			t.Fatal(err)
		}
	}
	compiled, err := compiler.Compile(id + "bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func valid(schema *jsonschema.Schema, text []byte) error {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(document)
}

// TestBillNamesEveryModule describes weft's own binary.
func TestBillNamesEveryModule(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	weft := filepath.Join(t.TempDir(), "weft")
	output(t, "go", "-C", "../../..", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", weft, "./cmd/weft")

	var out, again bytes.Buffer
	for _, to := range []*bytes.Buffer{&out, &again} {
		if err := run([]string{"-version", "1.2.3+4", weft}, to); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != again.String() {
		t.Error("the same binary has two bills")
	}
	rules := schema(t)
	if err := valid(rules, out.Bytes()); err != nil {
		t.Errorf("the bill is not CycloneDX: %v", err)
	}
	broken := strings.Replace(out.String(), `"type": "library"`, `"type": "shelf"`, 1)
	if valid(rules, []byte(broken)) == nil {
		t.Error("the schema takes a component of type shelf")
	}

	var bom cdx.BOM
	if err := json.Unmarshal(out.Bytes(), &bom); err != nil {
		t.Fatal(err)
	}
	if c := bom.Metadata.Component; c.Name != "weft" || c.Version != "1.2.3+4" || c.PackageURL != "pkg:golang/github.com/samuelhu324-dev/weft@1.2.3%2B4" {
		t.Errorf("describes %s %s, %s", c.Name, c.Version, c.PackageURL)
	}
	if bom.Metadata.Timestamp != "2023-11-14T22:13:20Z" {
		t.Errorf("timestamp %s, want that of SOURCE_DATE_EPOCH", bom.Metadata.Timestamp)
	}
	var got []string
	for _, c := range *bom.Components {
		got = append(got, c.Name+" "+c.Version)
		if c.Name != "std" && (c.Hashes == nil || len((*c.Hashes)[0].Value) != 64) {
			t.Errorf("%s has no checksum", c.Name)
		}
	}
	info, err := buildinfo.ReadFile(weft)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"std " + strings.TrimPrefix(info.GoVersion, "go")}
	for line := range strings.Lines(output(t, "go", "version", "-m", weft)) {
		if f := strings.Fields(line); f[0] == "dep" {
			want = append(want, f[1]+" "+f[2])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) < 20 {
		t.Errorf("components\n%v\nwant those of go version -m\n%v", got, want)
	}
	if needs := (*bom.Dependencies)[0].Dependencies; len(*needs) != len(want) {
		t.Errorf("weft depends on %d components, want %d", len(*needs), len(want))
	}
}

func TestRefusesWhatIsNoGoBinary(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"main.go"}, {"missing"}, {"one", "two"}} {
		var out bytes.Buffer
		if err := run(args, &out); err == nil || out.Len() > 0 {
			t.Errorf("run(%q) = %v and wrote %d bytes, want an error alone", args, err, out.Len())
		}
	}
}
