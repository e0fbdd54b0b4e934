package watch_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	tree     = "../../.."
	pages    = tree + "/docs/runbooks"
	pageURL  = "https://github.com/samuelhu324-dev/weft/blob/main/docs/runbooks/"
	board    = tree + "/deploy/grafana/dashboards/weft.json"
	provided = tree + "/deploy/grafana/provisioning"
)

// ruleFiles are those of recording and alerting rules.
func ruleFiles(t *testing.T) []string { return files(t, tree+"/deploy/prometheus/rules/*.yaml") }

func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: got %v, %v, want files", pattern, found, err)
	}
	return found
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// rule is a recording or an alerting one.
type rule struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	for _, file := range ruleFiles(t) {
		var content struct {
			Groups []struct {
				Rules []rule `yaml:"rules"`
			} `yaml:"groups"`
		}
		readYAML(t, file, &content)
		for _, g := range content.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

func alerts(t *testing.T) []rule {
	t.Helper()
	return slices.DeleteFunc(rules(t), func(r rule) bool { return r.Alert == "" })
}

// TestAlertsSayWhatToDo holds that an alert has what a person at night needs: how bad it
// is, one sentence, and a page that knows of it.
func TestAlertsSayWhatToDo(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		if seen[a.Alert] || !strings.HasPrefix(a.Alert, "Weft") {
			t.Errorf("%s: want a name of its own that begins with Weft", a.Alert)
		}
		seen[a.Alert] = true
		if s := a.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) {
			t.Errorf("%s: got severity %q", a.Alert, s)
		}
		if s := a.Annotations["summary"]; s == "" || strings.Contains(s, "{{") {
			t.Errorf("%s: got summary %q, want a sentence that does not change", a.Alert, s)
		}
		if a.Annotations["description"] == "" {
			t.Errorf("%s: no description", a.Alert)
		}
		page, ok := strings.CutPrefix(a.Annotations["runbook_url"], pageURL)
		if text, err := os.ReadFile(filepath.Join(pages, page)); !ok || err != nil || !strings.Contains(string(text), "`"+a.Alert+"`") {
			t.Errorf("%s: got runbook %q (%v), want a page that names the alert", a.Alert, a.Annotations["runbook_url"], err)
		}
	}
}

// TestAlertsAreTested holds that promtool's tests see every alert fire, and not fire.
func TestAlertsAreTested(t *testing.T) {
	t.Parallel()
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, file := range files(t, tree+"/deploy/prometheus/tests/*.yaml") {
		var content struct {
			Tests []struct {
				Alerts []struct {
					Name     string `yaml:"alertname"`
					Expected []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			} `yaml:"tests"`
		}
		readYAML(t, file, &content)
		for _, test := range content.Tests {
			for _, a := range test.Alerts {
				if len(a.Expected) > 0 {
					fires[a.Name] = true
				} else {
					quiet[a.Name] = true
				}
			}
		}
	}
	for _, a := range alerts(t) {
		if !fires[a.Alert] || !quiet[a.Alert] {
			t.Errorf("%s: fires in a test: %v, is quiet in one: %v, want both", a.Alert, fires[a.Alert], quiet[a.Alert])
		}
	}
}

// panel is one of the dashboard's.
type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Grid        struct{ X, Y, W, H int }
	Targets     []struct {
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
}

type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
			Multi      bool   `json:"multi"`
		} `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Name string `json:"name"`
			Expr string `json:"expr"`
		} `json:"list"`
	} `json:"annotations"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(board)
	if err != nil {
		t.Fatal(err)
	}
	var places struct {
		Panels []struct {
			GridPos struct{ X, Y, W, H int } `json:"gridPos"`
		} `json:"panels"`
	}
	for _, into := range []any{&d, &places} {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatalf("%s: %v", board, err)
		}
	}
	for i := range d.Panels {
		d.Panels[i].Grid = places.Panels[i].GridPos
	}
	return d
}

func TestDashboardIsWhole(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	variables := map[string]bool{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type == "query" && v.Multi
	}
	if !variables["env"] || !variables["projection"] {
		t.Errorf("got variables %v, want env and projection, each for several values", variables)
	}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: another panel has the number %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Grid.X < 0 || p.Grid.W < 1 || p.Grid.X+p.Grid.W > 24 {
			t.Errorf("%s: got %+v, want it within 24 columns", p.Title, p.Grid)
		}
		for _, o := range d.Panels[:i] {
			if p.Grid.X < o.Grid.X+o.Grid.W && o.Grid.X < p.Grid.X+p.Grid.W && p.Grid.Y < o.Grid.Y+o.Grid.H && o.Grid.Y < p.Grid.Y+p.Grid.H {
				t.Errorf("%s lies over %s", p.Title, o.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s: want a description and something to show", p.Title)
		}
		for _, target := range p.Targets {
			if !strings.Contains(target.Expr, `env=~"$env"`) || target.Legend == "" {
				t.Errorf("%s: got %s, legend %q, want it narrowed by env, and a legend", p.Title, target.Expr, target.Legend)
			}
		}
	}
}

// TestDataSourcesFitTogether holds that an exemplar's trace id leads to Jaeger.
func TestDataSourcesFitTogether(t *testing.T) {
	t.Parallel()
	var sources struct {
		List []struct {
			UID      string `yaml:"uid"`
			Type     string `yaml:"type"`
			JSONData struct {
				Destinations []struct {
					Name string `yaml:"name"`
					UID  string `yaml:"datasourceUid"`
				} `yaml:"exemplarTraceIdDestinations"`
			} `yaml:"jsonData"`
		} `yaml:"datasources"`
	}
	readYAML(t, provided+"/datasources/weft.yaml", &sources)
	uids := map[string]string{}
	var leads []string
	for _, s := range sources.List {
		uids[s.Type] = s.UID
		for _, d := range s.JSONData.Destinations {
			if d.Name == "trace_id" {
				leads = append(leads, d.UID)
			}
		}
	}
	if uids["prometheus"] == "" || len(leads) != 1 || leads[0] != uids["jaeger"] {
		t.Errorf("got sources %v and exemplars to %v, want Prometheus' to lead to Jaeger", uids, leads)
	}
	var provider struct {
		Providers []struct {
			Type string `yaml:"type"`
		} `yaml:"providers"`
	}
	readYAML(t, provided+"/dashboards/weft.yaml", &provider)
	if len(provider.Providers) != 1 || provider.Providers[0].Type != "file" {
		t.Errorf("got providers %v, want one of files", provider.Providers)
	}
}
