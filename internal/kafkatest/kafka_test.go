//go:build kafka

package kafkatest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/migrations"
)

const (
	page     = "../../docs/kafka.md"
	jars     = "../../tools/kafka/target/lib"
	entities = 20
	versions = 10 // events of each entity, for each way to finish events
	upLimit  = 3 * time.Minute
)

func TestMain(m *testing.M) { testenv.Main(m) }

// rig is a database with an outbox, and the servers that read it.
type rig struct {
	t           *testing.T
	url         string
	pool        *pgxpool.Pool
	dir         string
	broker, lib string
	blocks      map[string]string // of the page, by the names of their files
}

// message is one of a topic.
type message struct {
	key, id string
	Payload string `json:"payload"`
	Type    string `json:"type"`
	Op      string `json:"op"`
	Version int64  `json:"version"`
}

// TestKafkaBesideWeft has Debezium read the outbox of a working instance: each event is one
// message, in the order of its entity, and what weft writes into the table is none.
func TestKafkaBesideWeft(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.startBroker()
	r.connect()
	want := map[string]int64{} // by the ids of events
	for i, finished := range []string{"keep", "archive", "delete"} {
		stop := r.weft(finished)
		for id, version := range r.write(int64(i) * versions) {
			want[id] = version
		}
		r.settled(finished, len(want))
		stop()
		got := r.read(len(want))
		seen, last := map[string]bool{}, map[string]int64{}
		for _, m := range got {
			if version, known := want[m.id]; !known || version != m.Version || seen[m.id] {
				t.Errorf("%s: a message that no event asked for, or twice: %+v", finished, m)
			}
			if m.Payload != m.key || m.Type != "block" || m.Op != "upsert" || m.Version <= last[m.key] {
				t.Errorf("%s: got %+v after version %d", finished, m, last[m.key])
			}
			seen[m.id], last[m.key] = true, m.Version
		}
		if len(got) != len(want) || len(last) != entities {
			t.Fatalf("%s: got %d messages of %d entities, want %d of %d", finished, len(got), len(last), len(want), entities)
		}
	}
}

func setup(t *testing.T) *rig {
	t.Helper()
	if found, err := filepath.Glob(jars + "/debezium-connector-postgres-*.jar"); err != nil || len(found) == 0 {
		t.Fatalf("no connector in %s: make test-kafka brings it", jars)
	}
	lib, err := filepath.Abs(jars)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, url: testenv.Database(t), dir: t.TempDir(), blocks: map[string]string{}, lib: lib}
	r.pool = testenv.Pool(t, r.url)
	if _, err := migrations.Up(t.Context(), r.url); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```(sql|properties (\\S+))\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		r.blocks[block[2]] = block[3]
	}
	r.exec(r.blocks[""])
	return r
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// java starts a program of the jars, and returns when it is ready.
func (r *rig) java(name string, ready func(context.Context) error, args ...string) {
	r.t.Helper()
	p, err := process.Start(process.Server{
		Name: name, Dir: r.dir, Log: filepath.Join(r.dir, name+".log"), Argv: r.command(args...).Args, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("end of the log of %s:\n%s", name, p.Tail())
		}
		p.Stop(process.Step{Signal: syscall.SIGKILL, Wait: 10 * time.Second})
	})
	ctx, cancel := context.WithTimeout(r.t.Context(), upLimit)
	defer cancel()
	if err := p.Await(ctx, ready); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) command(args ...string) *exec.Cmd {
	r.t.Helper()
	java, err := exec.LookPath("java")
	if err != nil {
		r.t.Fatalf("java is missing: install a JDK, 17 or newer")
	}
	logging := filepath.Join(r.dir, "log4j.properties")
	if err := os.WriteFile(logging, []byte("log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\nlog4j.appender.out.target=System.err\nlog4j.appender.out.layout=org.apache.log4j.SimpleLayout\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return exec.CommandContext(r.t.Context(), java, append([]string{
		"-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dlog4j.configuration=file:" + logging, "-cp", r.lib + "/*",
	}, args...)...)
}

// file writes a file of the page, with lines that replace some of it.
func (r *rig) file(name, text string, lines ...string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *rig) address() string {
	r.t.Helper()
	port, err := process.FreePort()
	if err != nil {
		r.t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func (r *rig) startBroker() {
	r.t.Helper()
	r.broker = r.address()
	controller := r.address()
	settings := r.file("server.properties", "", "process.roles=broker,controller", "node.id=1", "controller.quorum.voters=1@"+controller,
		"listeners=PLAINTEXT://"+r.broker+",CONTROLLER://"+controller, "advertised.listeners=PLAINTEXT://"+r.broker,
		"controller.listener.names=CONTROLLER", "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs="+filepath.Join(r.dir, "kafka"), "offsets.topic.replication.factor=1", "offsets.topic.num.partitions=1")
	if out, err := r.command("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", settings).CombinedOutput(); err != nil {
		r.t.Fatalf("format: %v\n%s", err, out)
	}
	r.java("kafka", func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", r.broker)
		if err != nil {
			return err
		}
		return conn.Close()
	}, "kafka.Kafka", settings)
}

// connect starts the worker with the files of the page, and returns when the connector follows
// the outbox.
func (r *rig) connect() {
	r.t.Helper()
	at, err := url.Parse(r.url)
	if err != nil {
		r.t.Fatal(err)
	}
	rest := "http://" + r.address()
	worker := r.file("worker.properties", r.blocks["worker.properties"], "bootstrap.servers="+r.broker, "listeners="+rest,
		"offset.storage.file.filename="+filepath.Join(r.dir, "offsets"))
	password, _ := at.User.Password()
	connector := r.file("outbox.properties", r.blocks["outbox.properties"], "database.hostname="+at.Hostname(), "database.port="+at.Port(),
		"database.dbname="+strings.TrimPrefix(at.Path, "/"), "database.user="+at.User.Username(), "database.password="+password)
	r.java("connect", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, rest+"/connectors/outbox/status", nil)
		if err != nil {
			return err
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var status struct {
			Tasks []struct {
				State string `json:"state"`
				Trace string `json:"trace"`
			} `json:"tasks"`
		}
		if err := json.NewDecoder(res.Body).Decode(&status); err != nil {
			return err
		}
		if len(status.Tasks) != 1 || status.Tasks[0].State != "RUNNING" {
			return fmt.Errorf("status %+v", status)
		}
		var follows bool
		err = r.pool.QueryRow(ctx, "select exists (select from pg_replication_slots where slot_name = 'outbox' and active)").Scan(&follows)
		if err == nil && !follows {
			err = fmt.Errorf("nobody reads the slot")
		}
		return err
	}, "org.apache.kafka.connect.cli.ConnectStandalone", worker, connector)
	r.t.Cleanup(func() { r.dropSlot() })
}

// dropSlot takes the slot away, which would keep the database from being dropped.
func (r *rig) dropSlot() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := r.pool.Exec(ctx, "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = 'outbox' and active"); err != nil {
		r.t.Error(err)
	}
	testenv.Eventually(r.t, func() bool {
		_, err := r.pool.Exec(ctx, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = 'outbox'")
		return err == nil
	}, "the slot can be dropped")
}

// weft runs an instance until the function that it returns is called.
func (r *rig) weft(finished string) (stop func()) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), testenv.Program(r.t, "weft"), "run")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+r.url, "ELASTIC_URL="+testenv.ElasticURL(r.t), "ELASTIC_INDEX="+testenv.Index(r.t),
		"WEFT_PROJECTIONS=search_index_to_elastic", "OUTBOX_FINISHED="+finished, "OUTBOX_METRICS_PORT=0", "WEFT_HTTP_HOST=127.0.0.1", "WEFT_DESK_LISTEN=")
	out, err := os.Create(filepath.Join(r.dir, "weft-"+finished+".log"))
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			r.t.Errorf("weft: %v", err)
		}
		_ = out.Close()
	}
}

// write writes rows with their events, each in a transaction of its own, and returns the
// versions of the events.
func (r *rig) write(above int64) map[string]int64 {
	r.t.Helper()
	written := map[string]int64{}
	for version := above + 1; version <= above+versions; version++ {
		for e := range entities {
			entity, id := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(e)}), uuid.NewString()
			r.exec(`with written as (
				insert into search_index (entity_type, entity_id, text, event_version) values ('block', $1, 'a text', $2)
				on conflict (entity_type, entity_id) do update set event_version = excluded.event_version)
				insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values ($3, 'block', $1, 'upsert', $2)`, entity, version, id)
			written[id] = version
		}
	}
	return written
}

// settled waits until weft has done all events, and holds that they are where finished says.
func (r *rig) settled(finished string, all int) {
	r.t.Helper()
	one := func(sql string) (n int) {
		if err := r.pool.QueryRow(r.t.Context(), sql).Scan(&n); err != nil {
			r.t.Fatal(err)
		}
		return n
	}
	testenv.Eventually(r.t, func() bool {
		return one("select count(*) from search_outbox_events where status in ('pending', 'processing')") == 0
	}, "all events are done")
	left, archived := one("select count(*) from search_outbox_events"), one("select count(*) from search_outbox_history")
	if finished == "keep" && left != all || finished != "keep" && left >= all {
		r.t.Errorf("%s: %d events are left in the outbox, %d archived, of %d", finished, left, archived, all)
	}
}

var line = regexp.MustCompile(`^id:([0-9a-f-]+).*\t([0-9a-f-]+)\t(\{.*\})$`)

// read reads the topic from its beginning, until there are as many messages as wanted and no more come.
func (r *rig) read(wanted int) (found []message) {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool {
		found = nil
		out, err := r.command("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", r.broker, "--topic", "outbox.block", "--from-beginning",
			"--timeout-ms", "5000", "--property", "print.key=true", "--property", "print.headers=true").Output()
		if err != nil {
			return false
		}
		for text := range strings.Lines(string(out)) {
			parts := line.FindStringSubmatch(strings.TrimSpace(text))
			if parts == nil {
				r.t.Fatalf("a message of another form: %q", text)
			}
			m := message{id: parts[1], key: parts[2]}
			if err := json.Unmarshal([]byte(parts[3]), &m); err != nil {
				r.t.Fatalf("%s: %v", parts[3], err)
			}
			found = append(found, m)
		}
		return len(found) >= wanted
	}, fmt.Sprintf("%d messages", wanted))
	return found
}
