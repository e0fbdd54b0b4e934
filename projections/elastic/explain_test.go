package elastic

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/outbox"
)

func TestRefusalNamesTheMissingPrivilege(t *testing.T) {
	t.Parallel()
	for detail, want := range map[string][2]string{
		"action [indices:monitor/stats] is unauthorized for user [weft] on indices [docs]":                                                       {`a privilege on "docs"`, "view_index_metadata and monitor"},
		"action [cluster:monitor/health] is unauthorized for user [weft], this action is granted by the cluster privileges [monitor,manage,all]": {"a privilege on the cluster", "the cluster privilege monitor"},
		"status 403": {"says Elasticsearch at host:1 (status 403), or a proxy before it: grant", `a privilege on "docs"`},
		"no permissions for [cluster:monitor/health] and User [name=weft]": {"a privilege on the cluster", "the cluster privilege monitor"},
	} {
		err := refused("host:1", http.StatusForbidden, detail, "docs", Access{Username: "weft"})
		for _, part := range want {
			if !strings.Contains(err.Error(), part) || !IsAccess(err) {
				t.Errorf("got %v, want %q in it", err, part)
			}
		}
	}
}

// The request that lifts a block is for the index that the server names, whatever was asked for.
func TestBlockNamesItsIndex(t *testing.T) {
	t.Parallel()
	s, _ := newSink(t, Config{URLs: []string{"http://host:1"}, Index: "docs"})
	for reason, want := range map[string]string{
		"index [docs-v2] blocked by: [FORBIDDEN/9/index metadata (api)];": `index.blocks.metadata of "docs-v2" at host:1 is on`,
		"blocked by: [FORBIDDEN/9/index metadata (api)];":                 `index.blocks.metadata of "docs" at host:1 is on`,
	} {
		err := s.denied("docs", http.StatusForbidden, parseWhole([]byte(`{"error":{"type":"cluster_block_exception","reason":"`+reason+`"},"status":403}`)))
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func TestRefusalLeavesOutTheQueryOfTheRequest(t *testing.T) {
	t.Parallel()
	c := cause{Type: "security_exception", Reason: "unable to authenticate user [weft] for REST request [/docs?filter_path=%2A.aliases%2Cerror]"}
	if got, want := c.detail(http.StatusUnauthorized), "status 401: security_exception: unable to authenticate user [weft] for REST request [/docs]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Why a key is not taken stands beside the reason, as one text or several.
func TestRefusalSaysWhyAKeyIsNotTaken(t *testing.T) {
	t.Parallel()
	for why, want := range map[string]string{
		`"API key: api key is expired"`:                                        "unable to authenticate (API key: api key is expired)",
		`["API key: unable to find apikey with id x","service token: denied"]`: "unable to authenticate (API key: unable to find apikey with id x; service token: denied)",
	} {
		body := `{"error":{"root_cause":[],"type":"security_exception","reason":"unable to authenticate","additional_unsuccessful_credentials":` + why + `},"status":401}`
		if got := Said(http.StatusUnauthorized, []byte(body)); !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q at its end", got, want)
		}
	}
}

// A handshake that fails names its remedy itself: the server runs, and the address is right.
func TestRemedyOfAHandshake(t *testing.T) {
	t.Parallel()
	err := &UnansweredError{Hosts: "host:1", err: &handshakeError{"host:1", "correct it", errFingerprint}}
	if got := err.Error() + "; " + err.Remedy(); !strings.HasSuffix(got, ": correct it; then try again") {
		t.Errorf("got %q", got)
	}
}

// A proxy that lets nobody through is named: its words alone read as those of Elasticsearch.
func TestProxyThatRefusesIsNamed(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := NewTransport(Access{})
	if err != nil {
		t.Fatal(err)
	}
	transport.through.Proxy = http.ProxyURL(at)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://search.example:9200/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close()
		t.Fatal("got an answer")
	}
	want := "proxyconnect " + at.Host + ": the proxy answers 403 Forbidden: correct HTTPS_PROXY, or name the host in NO_PROXY"
	if reason := classifyError(err, 0, 0).fault.Reason; !strings.HasSuffix(err.Error(), want) || reason != outbox.ReasonESConnect {
		t.Errorf("got %v and %s, want %q and %s", err, reason, want, outbox.ReasonESConnect)
	}
}
