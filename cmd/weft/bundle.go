package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// bundleFile is what the manifest of a bundle says of one file.
type bundleFile struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	Error string `json:"error"` // why it is missing or incomplete; empty when it is whole
}

// bundleManifest is manifest.json of a bundle. Names and units stay; fields may be added.
type bundleManifest struct {
	MadeAt time.Time    `json:"made_at"`
	Build  build        `json:"build"`
	Group  string       `json:"group"`
	Files  []bundleFile `json:"files"`
}

func (a *app) bundleCommand(b build) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write all that helps to find a fault into one file, without secrets",
		Long: `Write one compressed archive with what helps others to find a fault: the settings with their
origins, status, what is in flight and waits, the audit and the terms of late, the findings
of weft doctor, up to 50 dead letters of each projection with their sanitised errors, versions
and settings of the server, sizes of the tables, query plans, and health and metrics of each
instance that answers. Nothing is changed, and a part that cannot be read is left out, with
the reason in manifest.json.

Passwords, keys, tokens and authorizations are masked: those of the settings and the
environment wherever they appear, and what looks like one. Ids of entities, names of hosts and
the texts that people wrote into the audit are in it: look at them before you hand it on.

The file can be read by its owner alone. - writes it to standard output.`,
		Example: `  weft support-bundle
  weft support-bundle --out - | ssh backup 'cat > weft.tar.gz'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.connected(cmd, doctorConnections, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				w := &bundler{cfg: cfg, pool: pool, secrets: append(cfg.Secrets(), environmentSecrets(a.environ)...)}
				w.manifest = bundleManifest{MadeAt: time.Now().UTC().Truncate(time.Second), Build: b, Group: cfg.Group}
				if to == "-" {
					return w.write(ctx, a.stdout)
				}
				if to == "" {
					to = "weft-support-" + cfg.Group + "-" + w.manifest.MadeAt.Format("20060102T150405Z") + ".tar.gz"
				}
				return a.bundleTo(ctx, w, to)
			})
		},
	}
	cmd.Flags().StringVar(&to, "out", "", "the `file` to write, which must not exist; - for standard output (default weft-support-GROUP-TIME.tar.gz)")
	databaseFlags(cmd, "group", "projections", "outbox.max_processing", "elastic.url", "elastic.timeout")
	return cmd
}

func (a *app) bundleTo(ctx context.Context, w *bundler, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &exitError{exitRefused, err.Error()}
	}
	err = errors.Join(w.write(ctx, f), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	lacking := 0
	for _, file := range w.manifest.Files {
		if file.Error != "" {
			lacking++
		}
	}
	text := fmt.Sprintf("%s: %d files", path, len(w.manifest.Files))
	if lacking > 0 {
		text += fmt.Sprintf(", %d of them missing or incomplete: manifest.json says why", lacking)
	}
	_, err = fmt.Fprintln(a.stdout, text)
	return err
}

var (
	secretName  = regexp.MustCompile(`(?i)password|passwd|secret|token|credential|api_?key|headers`)
	addressName = regexp.MustCompile(`(?i)dsn|ur[il]|^WEFT_SHARD_SERVERS$`)
)

// environmentSecrets returns values of the environment that must not be shown, also of names
// that weft does not read.
func environmentSecrets(environ []string) (out []string) {
	const shortest = 4 // a shorter value would mask half of the bundle
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if _, file := strings.CutSuffix(name, "_FILE"); secretName.MatchString(name) && !file && len(value) >= shortest {
			out = append(out, value)
		}
		if addressName.MatchString(name) {
			out = append(out, config.Passwords(value)...)
		}
	}
	return out
}

// bundler writes the archive. Each text goes through the mask.
type bundler struct {
	cfg      config.Config
	pool     *pgxpool.Pool
	secrets  []string
	manifest bundleManifest
	tar      *tar.Writer
}

func (w *bundler) write(ctx context.Context, to io.Writer) error {
	zip := gzip.NewWriter(to)
	w.tar = tar.NewWriter(zip)
	if err := w.add("settings.json", map[string]any{"settings": w.cfg.Effective(), "warnings": w.cfg.Warnings()}, nil); err != nil {
		return err
	}
	away := w.pool.Ping(ctx) // else each part waits for the same server
	for _, part := range w.parts() {
		if err := ctx.Err(); err != nil {
			return &exitError{exitTryAgain, "interrupted before the bundle was whole"}
		}
		var content any
		err := away
		if away == nil {
			content, err = part.read(ctx)
		}
		if err := w.add(part.name, content, err); err != nil {
			return err
		}
	}
	if err := w.metrics(ctx, away); err != nil {
		return err
	}
	manifest, err := json.MarshalIndent(w.manifest, "", "  ")
	if err == nil {
		err = w.file("manifest.json", manifest)
	}
	return errors.Join(err, w.tar.Close(), zip.Close())
}

// add writes a part, or into the manifest why it is missing.
func (w *bundler) add(name string, content any, failed error) error {
	file := bundleFile{Name: name}
	if failed != nil {
		_, text := postgres.Diagnose(postgres.In(w.cfg.Database.URL.Reveal(), failed))
		file.Error = config.Mask(text, w.secrets)
	}
	raw, isText := content.([]byte)
	if isText {
		raw = []byte(config.Mask(string(raw), w.secrets))
	} else if content != nil {
		var err error
		if raw, err = w.json(content); err != nil {
			return fmt.Errorf("bundle %s: %w", name, err)
		}
	}
	file.Bytes = len(raw)
	w.manifest.Files = append(w.manifest.Files, file)
	if len(raw) == 0 {
		return nil
	}
	return w.file(name, raw)
}

// json returns the JSON form of v with each of its texts masked, so that it stays JSON.
func (w *bundler) json(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var plain any
	if err := d.Decode(&plain); err != nil {
		return nil, err
	}
	return json.MarshalIndent(w.mask(plain), "", "  ")
}

func (w *bundler) mask(v any) any {
	switch v := v.(type) {
	case string:
		return config.Mask(v, w.secrets)
	case []any:
		for i := range v {
			v[i] = w.mask(v[i])
		}
	case map[string]any:
		for key, one := range v {
			v[key] = w.mask(one)
		}
	}
	return v
}

func (w *bundler) file(name string, raw []byte) error {
	err := w.tar.WriteHeader(&tar.Header{Name: "weft-support/" + name, Mode: 0o600, Size: int64(len(raw)), ModTime: w.manifest.MadeAt})
	if err == nil {
		_, err = w.tar.Write(raw)
	}
	if err != nil {
		return fmt.Errorf("bundle %s: %w", name, err)
	}
	return nil
}
