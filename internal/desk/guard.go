package desk

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"
)

// policy lets a page load its own style and script, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard refuses requests to other hosts, requests that are no GET, and, off loopback, all
// requests once the web configuration no longer asks for a login.
func (s *Server) guard(next http.Handler) http.Handler {
	hosts := s.o.hosts()
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
		case req.Method != http.MethodGet:
			h.Set("Allow", http.MethodGet)
			http.Error(w, "the desk only reads: GET", http.StatusMethodNotAllowed)
		case !s.here && s.refuses():
			http.Error(w, "the login of this page was switched off; its log says why", http.StatusServiceUnavailable)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

func (s *Server) refuses() bool {
	err := checkLogin(s.o.WebConfig)
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

// checkLogin returns an error unless the web configuration asks for TLS and a login: users, or
// verified certificates of clients.
func checkLogin(path string) error {
	if path == "" {
		return errors.New("that needs desk.web_config, with tls_server_config and basic_auth_users")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("desk.web_config: %w", err)
	}
	var c struct {
		TLS struct {
			Cert       string `yaml:"cert"`
			CertFile   string `yaml:"cert_file"`
			ClientAuth string `yaml:"client_auth_type"`
			ClientCA   string `yaml:"client_ca"`
			ClientCAs  string `yaml:"client_ca_file"`
		} `yaml:"tls_server_config"`
		Users map[string]string `yaml:"basic_auth_users"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return errors.New("desk.web_config cannot be parsed") // the error would quote the file
	}
	verified := c.TLS.ClientAuth == "RequireAndVerifyClientCert" && c.TLS.ClientCA+c.TLS.ClientCAs != ""
	switch {
	case c.TLS.Cert+c.TLS.CertFile == "":
		return errors.New("desk.web_config has no tls_server_config with a certificate")
	case len(c.Users) == 0 && !verified:
		return errors.New("desk.web_config has neither basic_auth_users nor RequireAndVerifyClientCert")
	}
	return nil
}
