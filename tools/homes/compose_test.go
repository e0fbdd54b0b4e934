package homes

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/graph"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/samuelhu324-dev/weft/internal/config"
)

// project is what `docker compose` makes of the file for a pair.
func project(t *testing.T) *types.Project {
	t.Helper()
	return composed(t, filepath.Join(deploy, "compose", "compose.yaml"))
}

func composed(t *testing.T, file string) *types.Project {
	t.Helper()
	o, err := cli.NewProjectOptions([]string{file}, cli.WithDotEnv)
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestComposeIsTaken(t *testing.T) {
	t.Parallel()
	p := project(t)
	if err := graph.CheckCycle(p); err != nil {
		t.Error(err)
	}
	if want := []string{"elasticsearch", "grafana", "grant", "jaeger", "migrate", "postgres", "prometheus", "weft"}; !slices.Equal(p.ServiceNames(), want) {
		t.Errorf("services %v, want %v", p.ServiceNames(), want)
	}
	sound(t, p)
}

// sound holds that all that the project names is there, has a version, and is not open to the
// network.
func sound(t *testing.T, p *types.Project) {
	t.Helper()
	there := func(what, path string) {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, s := range p.Secrets {
		there(s.Name, s.File)
	}
	for name, s := range p.Services {
		if s.Image != "weft" && !strings.Contains(s.Image, ":") {
			t.Errorf("%s: %s names no version", name, s.Image)
		}
		if s.Build != nil {
			there(name, filepath.Join(s.Build.Context, s.Build.Dockerfile))
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				there(name, v.Source)
			}
		}
		for _, port := range s.Ports {
			if ip := net.ParseIP(port.HostIP); ip == nil || !ip.IsLoopback() {
				t.Errorf("%s: port %s is open to the network", name, port.Published)
			}
		}
	}
}

// TestShopComposeIsTaken holds that the example's pair finds its servers and its files, which
// are mounted where its README and its settings look for them.
func TestShopComposeIsTaken(t *testing.T) {
	t.Parallel()
	p := composed(t, filepath.Join(deploy, "..", "examples", "shop", "compose.yaml"))
	if want := []string{"elasticsearch", "postgres", "weft"}; !slices.Equal(p.ServiceNames(), want) {
		t.Errorf("services %v, want %v", p.ServiceNames(), want)
	}
	sound(t, p)
	s := p.Services["weft"]
	if s.Image != "weft" || s.GetScale() != 2 || !s.ReadOnly {
		t.Errorf("weft: image %s, %d instances, read-only %v", s.Image, s.GetScale(), s.ReadOnly)
	}
	var environ, names []string
	for key, value := range s.Environment {
		environ = append(environ, key+"="+strings.Replace(*value, "/shop/", p.WorkingDir+"/", 1))
		if key != "WEFT_CONFIG" { // which is known by what it declares
			names = append(names, key)
		}
	}
	c := load(t, "weft", config.Options{Environ: environ}, names)
	if len(c.Declared) != 1 || c.Declared[0].Name != "products" {
		t.Errorf("declared are %v, want products", c.Declared)
	}
	for _, url := range []string{c.Database.URL.Reveal(), *s.Environment["ELASTIC_URL"]} {
		host, _, _ := strings.Cut(url[max(strings.LastIndex(url, "@"), strings.LastIndex(url, "//")+1)+1:], ":")
		if s.DependsOn[host].Condition != types.ServiceConditionHealthy || p.Services[host].HealthCheck == nil {
			t.Errorf("weft does not wait until %s is healthy", url)
		}
	}
	for _, name := range []string{"weft", "postgres"} {
		if v := p.Services[name].Volumes; len(v) != 1 || v[0].Source != p.WorkingDir || v[0].Target != "/shop" {
			t.Errorf("%s: mounts %v, want the example at /shop", name, v)
		}
	}
}

// TestContainersAreLocked holds what docs/security.md promises of weft's own containers.
func TestContainersAreLocked(t *testing.T) {
	t.Parallel()
	p := project(t)
	n := 0
	for name, s := range p.Services {
		if s.Image != "weft" {
			continue
		}
		n++
		if !s.ReadOnly || s.Privileged || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) || s.User != image(t).Config.User {
			t.Errorf("%s: read-only %v, without %v, %v, user %q", name, s.ReadOnly, s.CapDrop, s.SecurityOpt, s.User)
		}
		for _, ref := range s.Secrets {
			// Compose copies any other kind into the container, and its root is read-only.
			if p.Secrets[ref.Source].File == "" {
				t.Errorf("%s: the secret %s is no file", name, ref.Source)
			}
		}
		var environ, names []string
		for key, value := range s.Environment {
			v := *value
			if secret, ok := strings.CutPrefix(v, "/run/secrets/"); ok {
				if !slices.ContainsFunc(s.Secrets, func(r types.ServiceSecretConfig) bool { return r.Source == secret }) {
					t.Errorf("%s: %s is of a secret that it does not get", name, key)
				}
				v = p.Secrets[secret].File
			}
			environ, names = append(environ, key+"="+v), append(names, key)
		}
		c := load(t, name, config.Options{Environ: environ}, names)
		host, _, ok := strings.Cut(strings.SplitAfter(c.Database.URL.Reveal(), "@")[1], ":")
		if _, there := p.Services[host]; !ok || !there || s.DependsOn[host].Condition == "" && name == "migrate" {
			t.Errorf("%s: its database is at %v, which it does not wait for", name, c.Database.URL)
		}
	}
	if n != 3 {
		t.Errorf("%d services of weft, want migrate, grant and weft", n)
	}
	s := p.Services["weft"]
	if s.GetScale() != 2 || s.Restart != types.RestartPolicyAlways {
		t.Errorf("%d instances, restarted %q; want a pair that comes back", s.GetScale(), s.Restart)
	}
	if grace := config.Default().Outbox.ShutdownGrace; s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) <= grace+5*time.Second {
		t.Errorf("stop_grace_period is %v, and the shutdown grace %v", s.StopGracePeriod, grace)
	}
}

// sources is what Grafana is told of where its data is.
type sources struct {
	APIVersion  int `yaml:"apiVersion"`
	Datasources []struct {
		Name, UID, Type, Access, URL string
		JSONData                     map[string]any `yaml:"jsonData"`
	}
}

func parse(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// TestServersFindEachOther holds that Prometheus and Grafana look for what runs beside
// them, and are otherwise set up as deploy/prometheus and deploy/grafana say.
func TestServersFindEachOther(t *testing.T) {
	t.Parallel()
	p := project(t)
	var own, theirs sources
	parse(t, "grafana/provisioning/datasources/weft.yaml", &own)
	parse(t, "compose/grafana/datasources.yaml", &theirs)
	for i := range theirs.Datasources {
		d := &theirs.Datasources[i]
		host, _, _ := strings.Cut(strings.TrimPrefix(d.URL, "http://"), ":")
		s, ok := p.Services[host]
		if !ok {
			t.Errorf("%s is at %s, which is no service", d.Name, d.URL)
			continue
		}
		if port := strconv.Itoa(int(s.Ports[0].Target)); !strings.HasSuffix(d.URL, ":"+port) {
			t.Errorf("%s is at %s, and %s listens on %s", d.Name, d.URL, host, port)
		}
		d.URL = strings.Replace(d.URL, host, "127.0.0.1", 1)
	}
	if diff := cmp.Diff(own, theirs); diff != "" {
		t.Errorf("the data sources differ in more than the address (-grafana +compose):\n%s", diff)
	}

	type scrape struct {
		JobName string `yaml:"job_name"`
		DNS     []struct {
			Names []string
			Type  string
			Port  int
		} `yaml:"dns_sd_configs"`
	}
	var prometheus, reference struct {
		Global        map[string]string
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []scrape `yaml:"scrape_configs"`
	}
	parse(t, "prometheus/prometheus.yml", &reference)
	parse(t, "compose/prometheus/prometheus.yml", &prometheus)
	if got := prometheus.ScrapeConfigs; len(got) != 1 || len(got[0].DNS) != 1 || got[0].DNS[0].Port != config.Default().HTTP.MetricsPort ||
		!slices.Equal(got[0].DNS[0].Names, []string{"weft"}) || got[0].JobName != reference.ScrapeConfigs[0].JobName {
		t.Errorf("Prometheus looks at %+v", got)
	}
	prometheus.ScrapeConfigs, reference.ScrapeConfigs = nil, nil
	if diff := cmp.Diff(reference, prometheus); diff != "" {
		t.Errorf("Prometheus differs in more than the targets (-prometheus +compose):\n%s", diff)
	}

	// What the files name as paths in the containers is mounted there.
	for _, c := range []struct{ service, target string }{
		{"prometheus", "/etc/prometheus/rules"}, {"prometheus", "/etc/prometheus/prometheus.yml"},
		{"grafana", "/var/lib/grafana/dashboards/weft"}, {"grafana", "/etc/grafana/provisioning/dashboards"},
	} {
		if !slices.ContainsFunc(p.Services[c.service].Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == c.target && v.ReadOnly }) {
			t.Errorf("%s: nothing is mounted at %s", c.service, c.target)
		}
	}
}
