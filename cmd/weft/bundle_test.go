package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// unpacked returns the files of a bundle.
func unpacked(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil || h.Mode != 0o600 {
			t.Fatalf("%s: mode %o, %v", h.Name, h.Mode, err)
		}
		out[strings.TrimPrefix(h.Name, "weft-support/")] = string(content)
	}
}

// A bundle has its parts whole, is readable by its owner alone, and holds none of the secrets that
// are planted in settings, environment, tables and answers of an instance.
func TestSupportBundleHoldsNoSecret(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.fill()
	url0 := strings.TrimPrefix(m.env[0], "DATABASE_URL=")
	user := testenv.Runner(t, url0)
	password, _ := user.Password()
	const planted = "s3cr3t-"
	instance := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, "weft_up{url=\"http://elastic:"+planted+"basic@es\"} 1 "+planted+"apikey\n")
			return
		}
		_, _ = io.WriteString(w, `{"instance": "weft-a", "why": "password=`+planted+`health", "ready": true}`)
	}))
	defer instance.Close()
	at, _ := url.Parse(instance.URL)
	m.exec(`insert into weft_instance (group_name, instance, role, version, host, pid, http_addr, started_at, seen_at)
		values ('weft', 'weft-a', 'standby', 'v', 'h', 1, $1, now(), now()), ('weft', 'weft-b', 'standby', 'v', 'h', 1, $1, now(), now())`, at.Host)
	m.exec(`update search_outbox_events set error = 'refused: https://elastic:` + planted + `error@es:9200/_bulk Authorization: Bearer ` + planted + `bearer' where event_version = 1`)
	m.exec(`insert into weft_audit (at, actor, action, why, count) values (now(), 'bob', 'replay', 'with token=` + planted + `audit', 1),
		(now(), 'bob', 'replay', 'it was ` + password + ` and ` + planted + `apikey and ` + planted + `q"&', 1)`)
	env := []string{
		"DATABASE_URL=" + testenv.As(t, url0, user), "ELASTIC_URL=http://elastic:" + planted + `q%22%26@es:9200`, "WEFT_SHARD_SERVERS=0=postgres://u:" + planted + "s@h/d",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20" + planted + "otlp,x-key=" + planted + "header", "MY_APP_API_KEY=" + planted + "apikey",
	}
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	r := weft(t, env, "support-bundle", "--out", path)
	if r.code != 0 || !strings.Contains(r.out, path+": ") {
		t.Fatalf("got %+v, want the file", r)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want a file for its owner alone", info, err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := unpacked(t, raw)
	for name, content := range files {
		for _, secret := range []string{password, planted} {
			if i := strings.Index(content, secret); i >= 0 {
				t.Errorf("%s holds a secret: %q", name, content[max(0, i-40):min(len(content), i+40)])
			}
		}
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(content)) {
			t.Errorf("%s is no JSON: %s", name, content)
		}
	}
	for name, want := range map[string]string{
		"settings.json": `"key": "database.url"`, "status.json": `"search_index_to_elastic"`, "queues.json": `"waiting": []`, "doctor.json": "[", "audit.json": "with token=*****",
		"history.json": "[", "dead-letters.json": "refused: https://elastic:*****@es:9200/_bulk Authorization: Bearer *****", "plans.json": "Limit", "server.json": "PostgreSQL",
		"instances/0/health.json": `"ready": true`, "instances/0/metrics.txt": "weft_up{url=",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s: got %.600q, want %q in it", name, files[name], want)
		}
	}
	var manifest bundleManifest
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil || manifest.Group != "weft" || manifest.Build.Go == "" {
		t.Fatalf("manifest: got %+v, %v", manifest, err)
	}
	for _, f := range manifest.Files {
		if wrong := f.Name == "instances/1/health.json"; wrong != strings.Contains(f.Error, "is not instance weft-b") || !wrong && f.Error != "" {
			t.Errorf("manifest: got %+v, want an error for the instance that another answers for alone", f)
		}
	}
	if r := weft(t, env, "support-bundle", "--out", path); r.code != exitRefused {
		t.Errorf("got %+v, want a refusal to replace a file", r)
	}
	if r := weft(t, env, "support-bundle", "--out", "-"); r.code != 0 || len(unpacked(t, []byte(r.out))) < len(files) {
		t.Errorf("standard output: got code %d, %s", r.code, r.errOut)
	}
}

// TestSupportBundleAsksASilentServerOnce: it is made in an outage, and each part would wait as long as the first.
func TestSupportBundleAsksASilentServerOnce(t *testing.T) {
	t.Parallel()
	frozen, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tries := make(chan int)
	go func() {
		n := 0
		var held []net.Conn
		for {
			conn, err := frozen.Accept()
			if err != nil {
				break
			}
			n, held = n+1, append(held, conn)
		}
		for _, conn := range held {
			_ = conn.Close()
		}
		tries <- n
	}()
	r := weft(t, []string{"DATABASE_URL=postgres://u@" + frozen.Addr().String() + "/d?sslmode=disable&connect_timeout=1", "ELASTIC_URL=http://127.0.0.1:1"}, "support-bundle", "--out", "-")
	if err := frozen.Close(); err != nil {
		t.Error(err)
	}
	var manifest bundleManifest
	if err := json.Unmarshal([]byte(unpacked(t, []byte(r.out))["manifest.json"]), &manifest); err != nil || r.code != 0 || len(manifest.Files) != 10 {
		t.Fatalf("got code %d, %s, %+v, %v", r.code, r.errOut, manifest, err)
	}
	if n := <-tries; n >= len(manifest.Files) {
		t.Errorf("%d connections were tried, want fewer than one for each part", n)
	}
	for _, f := range manifest.Files {
		if lacks := f.Name != "settings.json"; lacks != strings.HasPrefix(f.Error, "no answer from Postgres at ") {
			t.Errorf("got %+v, want why it is missing: %v", f, lacks)
		}
	}
}
