package projection_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"sync"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft"
	"github.com/samuelhu324-dev/weft/examples/projection"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// service is the destination: it keeps the newest version of each contact.
type service struct {
	mu       sync.Mutex
	away     bool
	versions map[string]int64
	emails   map[string]string
}

func (s *service) ServeHTTP(out http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c struct {
		Version int64
		Email   string
	}
	id := path.Base(req.URL.Path)
	switch {
	case s.away:
		out.WriteHeader(http.StatusServiceUnavailable)
	case req.Method == http.MethodHead:
	case json.NewDecoder(req.Body).Decode(&c) != nil, c.Email == "not an address":
		out.WriteHeader(http.StatusUnprocessableEntity)
	case c.Version < s.versions[id]:
		out.WriteHeader(http.StatusConflict)
	default:
		s.versions[id] = c.Version
		delete(s.emails, id)
		if req.Method == http.MethodPut {
			s.emails[id] = c.Email
		}
	}
}

func (s *service) has(want map[string]string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Equal(s.emails, want)
}

func (s *service) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func TestServiceGetsTheNewestStateOfEachContact(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	exec(string(schema))
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: "crm.contact"}, true); err != nil {
		t.Fatal(err)
	}
	mail := &service{versions: map[string]int64{}, emails: map[string]string{}}
	server := httptest.NewServer(mail)
	t.Cleanup(server.Close)

	settings := weft.DefaultSettings()
	settings.Database.URL = weft.URL(dsn)
	w := weft.New(weft.Options{Settings: settings, Logger: zaptest.NewLogger(t)})
	if err := w.Register(projection.Name, projection.New(server.URL)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	await := func(what string, want map[string]string) {
		t.Helper()
		testenv.Eventually(t, func() bool { return mail.has(want) }, what)
	}

	exec("insert into crm.contact values (1, 'one@example'), (2, 'not an address'), (3, 'three@example')")
	await("the contacts that the service takes", map[string]string{"1": "one@example", "3": "three@example"})
	testenv.Eventually(t, func() bool {
		var id, reason string
		err := pool.QueryRow(t.Context(), "select entity_id::text, error_reason from contact_outbox_events where status = 'failed'").Scan(&id, &reason)
		return err == nil && fmt.Sprint(id, reason) == "2deterministic_exception"
	}, "the refused contact among the dead letters")

	mail.set(true)
	exec("update crm.contact set email = 'new@example' where id = 1")
	exec("delete from crm.contact where id = 3")
	testenv.Eventually(t, func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "select count(*) from contact_outbox_events where status = 'pending' and attempts > 0").Scan(&n)
		return err == nil && n > 0
	}, "events that wait while the service is away")
	mail.set(false)
	await("what changed while the service was away", map[string]string{"1": "new@example"})
}
