package desk

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// policy lets a page load its own style and script, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard refuses requests to other hosts, and methods other than GET; with actions it lets POST
// requests of the page's own pass. Off loopback it refuses all requests once the web configuration
// no longer asks for a login.
func (s *Server) guard(next http.Handler) http.Handler {
	hosts, origin := s.o.hosts(), http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !slices.Contains(hosts, hostOf(req.Host)):
			http.Error(w, "this page has no such name; name it in desk.hosts", http.StatusMisdirectedRequest)
		case req.Method != http.MethodGet && (req.Method != http.MethodPost || !s.o.Actions):
			allow, text := "GET", "the desk only reads: GET"
			if s.o.Actions {
				allow, text = "GET, POST", "the desk answers GET and POST alone"
			}
			h.Set("Allow", allow)
			http.Error(w, text, http.StatusMethodNotAllowed)
		case !s.here && s.refuses():
			http.Error(w, "the login of this page was switched off; its log says why", http.StatusServiceUnavailable)
		case origin.Check(req) != nil:
			http.Error(w, "this request comes from another page", http.StatusForbidden)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

func (s *Server) refuses() bool {
	_, err := readLogin(s.o.WebConfig, true)
	if err != nil {
		s.log.Warn("desk answers nobody", zap.String("event", "desk.refused"), zap.Error(err))
	}
	return err != nil
}

// hostOf returns the name in a Host header, lower case, without port and brackets.
func hostOf(header string) string {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	return strings.ToLower(host)
}

// loopback says whether an address to listen on is reached from this host alone.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
