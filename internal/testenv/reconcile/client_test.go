package reconcile

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// One node after the other is asked until one answers, with anything but 503; it is asked first
// the next time.
func TestClientOfSeveralNodes(t *testing.T) {
	t.Parallel()
	var asked []string
	server := func(name string, status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			asked = append(asked, name+" "+r.URL.Path+" "+string(body))
			w.WriteHeader(status)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	c, err := NewClient("http://127.0.0.1:1," + server("alone", 503) + "," + server("well", 200))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for range 2 {
		if err := c.Do(t.Context(), http.MethodPut, "/x", 1, nil); err != nil {
			t.Error(err)
		}
	}
	if len(asked) != 3 || asked[0] != "alone /x 1" || asked[1] != "well /x 1" || asked[2] != "well /x 1" {
		t.Errorf("asked were %q, want the one that is well twice, and the one before it once", asked)
	}
	if _, err := NewClient("http://a,b"); err == nil {
		t.Error("an address without a host: got no error")
	}
}
