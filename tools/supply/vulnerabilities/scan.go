package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/mod/modfile"
	"golang.org/x/vuln/scan"
)

// finding is an advisory against a package that a module builds.
type finding struct {
	Advisory, Summary      string
	Module, Version, Fixed string
}

func (f finding) where() string {
	if f.Fixed == "" {
		return fmt.Sprintf("%s@%s (not fixed)", f.Module, f.Version)
	}
	return fmt.Sprintf("%s@%s (fixed in %s)", f.Module, f.Version, f.Fixed)
}

// modified returns the time of the newest advisory in the database.
func modified(ctx context.Context, db string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	//nolint:gosec // the caller's own files, as the command line names them
	transport.RegisterProtocol("file", http.NewFileTransport(http.Dir("/")))
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(db, "/")+"/index/db.json", nil)
	if err != nil {
		return time.Time{}, err
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return time.Time{}, fmt.Errorf("index/db.json: %s", res.Status)
	}
	var index struct {
		Modified time.Time `json:"modified"`
	}
	if err := json.NewDecoder(res.Body).Decode(&index); err != nil {
		return time.Time{}, fmt.Errorf("index/db.json: %w", err)
	}
	return index.Modified, nil
}

// modules returns the directories of the tree that hold a go.mod, in order.
func modules(tree string) (dirs []string, err error) {
	err = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != tree && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.Name() != "go.mod":
			return nil
		}
		dir, err := filepath.Rel(tree, filepath.Dir(path))
		dirs = append(dirs, dir)
		return err
	})
	slices.Sort(dirs)
	return dirs, err
}

// lintFile names the build tags of the tree, none of which excludes another.
const lintFile = ".golangci.yaml"

// buildTags returns those of the tree as a flag's value; it is empty where the file is missing.
func buildTags(tree string) (string, error) {
	data, err := os.ReadFile(filepath.Join(tree, lintFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	var lint struct {
		Run struct {
			Tags []string `yaml:"build-tags"`
		}
	}
	if err := yaml.Unmarshal(data, &lint); err != nil {
		return "", fmt.Errorf("%s: %w", lintFile, err)
	}
	return strings.Join(lint.Run.Tags, ","), nil
}

// scanModule returns the advisories against what the packages, the tests and the tools of
// the module in dir import. Code behind tags is scanned too.
func scanModule(ctx context.Context, db, dir, tags string) ([]finding, error) {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	mod, err := modfile.Parse("go.mod", data, nil)
	if err != nil {
		return nil, err
	}
	own, err := exec.CommandContext(ctx, "go", "-C", dir, "list", "-tags", tags, "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("list of its packages: %w", err)
	}
	var found []finding
	if len(own) > 0 {
		if found, err = scanPackages(ctx, db, dir, tags, "-test", "./..."); err != nil {
			return nil, err
		}
	}
	if len(mod.Tool) > 0 {
		// Without the tools' own tests, which nobody builds here.
		more, err := scanPackages(ctx, db, dir, tags, "tool")
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	slices.SortFunc(found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(a.Advisory, b.Advisory))
	})
	return slices.Compact(found), nil
}

func scanPackages(ctx context.Context, db, dir, tags string, packages ...string) ([]finding, error) {
	var out, complaints bytes.Buffer
	cmd := scan.Command(ctx, append([]string{"-db", db, "-C", dir, "-format", "json", "-scan", "package", "-tags", tags}, packages...)...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaints.String()))
	}
	return decode(&out)
}

// decode reads the messages of govulncheck and returns the advisories against imported
// packages.
func decode(r io.Reader) (found []finding, err error) {
	type message struct {
		OSV *struct {
			ID      string `json:"id"`
			Summary string `json:"summary"`
		} `json:"osv"`
		Finding *struct {
			OSV   string `json:"osv"`
			Fixed string `json:"fixed_version"`
			Trace []struct {
				Module  string `json:"module"`
				Version string `json:"version"`
				Package string `json:"package"`
			} `json:"trace"`
		} `json:"finding"`
	}
	summaries := map[string]string{}
	for messages := json.NewDecoder(r); ; {
		var m message
		if err := messages.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("answer of govulncheck: %w", err)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		// Without a package, the module is required and nothing vulnerable of it imported.
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Package != "" {
			found = append(found, finding{Advisory: f.OSV, Module: f.Trace[0].Module, Version: f.Trace[0].Version, Fixed: f.Fixed})
		}
	}
	for i := range found {
		found[i].Summary = summaries[found[i].Advisory]
	}
	return found, nil
}
