package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// fromHere lets requests pass that come straight from this host: not from another address,
// not through a proxy, not from a page that a browser on this host shows.
func fromHere(next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := req.Header
		forwarded := h.Get("Forwarded")+h.Get("X-Forwarded-For")+h.Get("X-Real-Ip")+h.Get("Via") != ""
		if forwarded || !loopback(req.RemoteAddr) || !loopback(req.Host) {
			reply(w, http.StatusForbidden, map[string]string{"error": "only a request from this host to its loopback address may do this"})
			return
		}
		req.Body = http.MaxBytesReader(w, req.Body, 1<<10)
		next.ServeHTTP(w, req)
	}))
}

// loopback says whether host, with a port or without, is this host's own.
func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}
