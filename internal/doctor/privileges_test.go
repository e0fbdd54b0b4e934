package doctor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// deny answers a question for privileges: everything that was asked for is held, but what lacks has, as
// "privilege on name", the cluster's on "". It returns the names that were asked about.
func deny(t *testing.T, e *examination, targets []target, lacks ...string) (names []string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Cluster []string
			Index   []struct{ Names, Privileges []string }
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		has := privileged{map[string]bool{}, map[string]map[string]bool{}}
		for _, p := range asked.Cluster {
			has.Cluster[p] = !slices.Contains(lacks, p+" on ")
		}
		for _, on := range asked.Index {
			names = append(names, on.Names...)
			for _, name := range on.Names {
				has.Index[name] = map[string]bool{}
				for _, p := range on.Privileges {
					has.Index[name][p] = !slices.Contains(lacks, p+" on "+name)
				}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(map[string]any{"cluster": has.Cluster, "index": has.Index}); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.privileges(t.Context(), &server{url: at, client: http.DefaultClient, timeout: time.Minute}, targets); err != nil {
		t.Fatal(err)
	}
	return names
}

func denied(t *testing.T, environ ...string) *examination {
	t.Helper()
	return &examination{Options: Options{Config: loaded(t, environ...)}}
}

const (
	run = `"read","index","delete","view_index_metadata","monitor"`
	all = run + `,"maintenance","manage"`
)

// The request that gives a role a privilege replaces the role, so it has what all targets need, and takes
// away nothing that the credentials have.
func TestRemedyTakesNoPrivilegeAway(t *testing.T) {
	t.Parallel()
	const first, second = `{"names":["a","a-v*"],"privileges":[`, `{"names":["b","b-v*"],"privileges":[`
	for name, c := range map[string]struct{ lacks, want string }{
		"OfAnotherTarget":  {"delete on a", `{"cluster":["monitor"],"indices":[` + first + all + `]},` + second + all + `]}]}`},
		"OfOneName":        {"manage on b-v*", `{"cluster":["monitor"],"indices":[` + first + all + `]},` + second + all + `]}]}`},
		"MissingOnCluster": {"monitor on ", `{"cluster":["monitor"],"indices":[` + first + all + `]},` + second + all + `]}]}`},
	} {
		e := denied(t)
		deny(t, e, []target{{projection: "p", index: "a"}, {projection: "q", index: "b"}}, c.lacks)
		if want := "PUT /_security/role/weft " + c.want + "; it replaces the role of that name"; len(e.found) != 1 || e.found[0].Remedy != want {
			t.Errorf("%s: got %+v, want the remedy %s", name, e.found, want)
		}
	}
	e := denied(t)
	deny(t, e, []target{{projection: "p", index: "a"}, {projection: "q", index: "b"}}, "maintenance on a-v*", "manage on a-v*")
	if len(e.found) != 2 || !strings.Contains(e.found[0].Remedy, first+all+`]},`) {
		t.Errorf("got %+v, want manage, which is held on the other name, kept", e.found)
	}
	e = denied(t)
	deny(t, e, []target{{projection: "p", index: "a"}, {projection: "q", index: "b"}}, "manage on a", "manage on a-v*", "maintenance on a", "maintenance on a-v*")
	if len(e.found) != 4 || !strings.Contains(e.found[0].Remedy, first+run+`,"maintenance"]},`+second+all+`]}`) {
		t.Errorf("got %+v, want a remedy that leaves the other target alone", e.found)
	}
}

// An API key keeps the privileges that it was made with, and nobody gives a service account more.
func TestRemedyIsThatOfTheCredentials(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"ELASTIC_API_KEY":       `POST /_security/api_key {"name":"weft","role_descriptors":{"weft":{"cluster":["monitor"],"indices":[{"names":["a","a-v*"],`,
		"ELASTIC_SERVICE_TOKEN": `log in as a user, or with an API key`,
	} {
		e := denied(t, key+"=Zm9vOmJhcg==")
		deny(t, e, []target{{projection: "p", index: "a"}}, "read on a")
		if len(e.found) != 1 || !strings.HasPrefix(e.found[0].Remedy, want) {
			t.Errorf("%s: got %+v, want the remedy %s", key, e.found, want)
		}
	}
}

// Credentials that are refused are corrected where they are set.
func TestRemedyForRefusedCredentials(t *testing.T) {
	t.Parallel()
	a := well()
	a["GET /_cluster/health"] = "401"
	s := httptest.NewServer(a)
	defer s.Close()
	for remedy, environ := range map[string][]string{
		"correct elastic.api_key;":                         {"ELASTIC_API_KEY=Zm9vOmJhcg=="},
		"correct elastic.service_token;":                   {"ELASTIC_SERVICE_TOKEN=t"},
		"correct elastic.username and elastic.password;":   {"ELASTIC_USERNAME=u", "ELASTIC_PASSWORD=p"},
		"elastic.api_key or elastic.service_token, or the": nil,
	} {
		wantFinding(t, visit(t, s.URL, http.DefaultTransport, "idx", environ...), want{"elastic.rights", Error, "127.0.0.1", "does not accept the credentials", remedy})
	}
}

// An API key is told two weeks before its end. It asks about itself alone, for which it needs no privilege.
func TestAPIKeyThatExpires(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		end  time.Duration // from now on; 0: without an end
		want want
	}{
		"Soon":     {13 * day, want{"elastic.api_key", Warning, "127.0.0.1", `the API key "weft" expires in 13 days, on `, "set elastic.api_key to it, and `kill -HUP`"}},
		"VerySoon": {3 * day, want{"elastic.api_key", Error, "127.0.0.1", "expires in 3 days", "POST /_security/api_key"}},
		"Later":    {15 * day, want{}},
		"Never":    {0, want{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, key := well(), `{"id":"foo","name":"weft","invalidated":false}`
			if c.end > 0 {
				key = fmt.Sprintf(`{"id":"foo","name":"weft","expiration":%d,"invalidated":false}`, visited.Add(c.end).UnixMilli())
			}
			a["GET /_security/api_key"] = `{"api_keys":[` + key + `]}`
			var asked string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/_security/api_key" {
					asked = r.URL.RawQuery
				}
				a.ServeHTTP(w, r)
			}))
			defer s.Close()
			found := visit(t, s.URL, http.DefaultTransport, "idx", "ELASTIC_API_KEY=Zm9vOmJhcg==") // foo:bar
			if asked != "id=foo" {
				t.Errorf("asked for %q, want the key itself", asked)
			}
			if c.want == (want{}) {
				if len(found) > 0 {
					t.Errorf("got %+v, want nothing", found)
				}
				return
			}
			wantFinding(t, found, c.want)
		})
	}
	for name, answer := range map[string]string{"NoPrivilege": "403", "NoSecurity": "", "OfAProxy": proxyPage} {
		a := well()
		if a["GET /_security/api_key"] = answer; answer == "" {
			delete(a, "GET /_security/api_key")
		}
		s := httptest.NewServer(a)
		if found := visit(t, s.URL, http.DefaultTransport, "idx", "ELASTIC_API_KEY=Zm9vOmJhcg=="); len(found) > 0 {
			t.Errorf("%s: got %+v, want nothing", name, found)
		}
		s.Close()
	}
}

// Where each shard has an index of its own, weft writes to the names of the shard, and keeps the alias over all
// of them. A role has the names of all shards: the remedy for one shard must not shut out the others.
func TestPrivilegesOnTheIndexOfAShard(t *testing.T) {
	t.Parallel()
	shard := func(lacks ...string) (*examination, []string) {
		e := denied(t)
		e.Config.Elastic.Index, e.Config.Elastic.SearchAlias = elastic.IndexOfShard("idx", 1), "idx"
		return e, deny(t, e, []target{{projection: "search_index_to_elastic", index: "idx-shard-1"}}, lacks...)
	}
	e, names := shard()
	if want := "[idx-shard-1 idx-shard-1-v* idx]"; fmt.Sprint(names) != want || len(e.found) > 0 {
		t.Errorf("asked for %v, want %s; found %+v", names, want, e.found)
	}
	e, _ = shard("read on idx", "index on idx") // weft does neither there
	if len(e.found) > 0 {
		t.Errorf("got %+v, want nothing", e.found)
	}
	const role = `"indices":[{"names":["idx","idx-shard-*"],"privileges":[` + all + `]}]}`
	for lacks, want := range map[string]want{
		"view_index_metadata on idx": {"elastic.rights", Error, "idx", "searches find the documents of each shard once", role},
		"manage on idx":              {"elastic.rights", Note, "idx", "`weft rebuild` moves it", role},
		"manage on idx-shard-1-v*":   {"elastic.rights", Note, "idx-shard-1-v*", "the privilege manage", role},
		"delete on idx-shard-1":      {"elastic.rights", Error, "idx-shard-1", "weft deletes documents", role},
		"monitor on ":                {"elastic.rights", Note, "127.0.0.1", "the cluster privilege monitor", role},
		"maintenance on idx-shard-1": {"elastic.rights", Note, "idx-shard-1", "the privilege maintenance", role},
		"monitor on idx-shard-1-v*":  {"elastic.rights", Warning, "idx-shard-1-v*", "the privilege monitor", role},
	} {
		e, _ := shard(lacks)
		if len(e.found) != 1 {
			t.Errorf("%s: got %+v, want one finding", lacks, e.found)
		}
		wantFinding(t, e.found, want)
	}
}
