package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	installPrometheus = "install it (Debian, Ubuntu: apt-get install --no-install-recommends prometheus)"
	defaultInterval   = time.Second
)

// Target is one instance to be scraped.
type Target struct {
	Job     string
	Address string // host and port
}

// PrometheusOptions name the targets, the rules, and how often both are read.
type PrometheusOptions struct {
	Dir      string        // of the data, the configuration and the log; it must exist
	Rules    []string      // files of rules
	Interval time.Duration // of scrapes and evaluations; 0 is a second
	Targets  []Target
}

// Prometheus is a running server, and its HTTP API. Its methods are safe for concurrent use.
type Prometheus struct {
	*server
	v1.API
	dir  string
	port int
}

// StartPrometheus returns when the server answers.
func StartPrometheus(ctx context.Context, opts PrometheusOptions) (*Prometheus, error) {
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, fmt.Errorf("no prometheus on the PATH: %s", installPrometheus)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	p := &Prometheus{dir: dir}
	file, err := p.configure(opts)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	data, err := os.MkdirTemp(dir, "prometheus-") // of its own: what another run has left there would still count
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	p.server, err = launch(ctx, "prometheus", dir, nil, func() ([]string, error) {
		if err := errors.Join(process.FreePorts(&p.port), p.connect()); err != nil {
			return nil, err
		}
		return []string{
			binary, "--config.file=" + file, "--storage.tsdb.path=" + data, "--storage.tsdb.retention.time=1d",
			"--web.listen-address=" + loopback(p.port), "--enable-feature=exemplar-storage",
		}, nil
	}, func(ctx context.Context) error {
		flags, err := p.Flags(ctx)
		if err == nil && flags["config.file"] != file {
			err = errors.New("another Prometheus listens there")
		}
		return err
	})
	return p, err
}

// URL is where it answers.
func (p *Prometheus) URL() string { return "http://" + loopback(p.port) }

func (p *Prometheus) connect() error {
	c, err := api.NewClient(api.Config{Address: p.URL(), Client: newHTTP()})
	p.API = v1.NewAPI(c)
	return err
}

// Vector evaluates a PromQL expression now, and returns nothing where nothing matches.
func (p *Prometheus) Vector(ctx context.Context, expression string) (model.Vector, error) {
	value, _, _, err := p.Query(ctx, expression, time.Now())
	vector, ok := value.(model.Vector)
	if err == nil && !ok {
		err = fmt.Errorf("%s is no vector: %v", expression, value)
	}
	return vector, err
}

func (p *Prometheus) targetFile() string { return filepath.Join(p.dir, "targets.json") }

func (p *Prometheus) configure(opts PrometheusOptions) (file string, err error) {
	if err := p.SetTargets(opts.Targets...); err != nil {
		return "", err
	}
	interval := cmp.Or(opts.Interval, defaultInterval).String()
	rules := make([]string, len(opts.Rules))
	for i, r := range opts.Rules {
		if rules[i], err = filepath.Abs(r); err != nil {
			return "", err
		}
	}
	content, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval},
		"rule_files": rules,
		"scrape_configs": []any{map[string]any{
			"job_name": "unnamed", "file_sd_configs": []any{map[string]any{"files": []string{p.targetFile()}}},
		}},
	})
	if err != nil {
		return "", err
	}
	file = filepath.Join(p.dir, "prometheus.yml")
	return file, os.WriteFile(file, content, 0o644)
}

// SetTargets replaces the targets. The server reads their file again when it changes.
func (p *Prometheus) SetTargets(targets ...Target) error {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := make([]group, 0, len(targets))
	for _, t := range targets {
		groups = append(groups, group{[]string{t.Address}, map[string]string{"job": t.Job}})
	}
	unnamed := p.targetFile() + ".new"
	content, err := json.Marshal(groups)
	if err == nil {
		err = os.WriteFile(unnamed, content, 0o644)
	}
	if err == nil {
		err = os.Rename(unnamed, p.targetFile())
	}
	if err != nil {
		return fmt.Errorf("targets: %w", err)
	}
	return nil
}
