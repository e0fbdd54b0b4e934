package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// fromHere reports whether a request comes straight from this host: not from another address,
// not through a proxy, and not by a foreign name that leads here.
func fromHere(req *http.Request) bool {
	h := req.Header
	forwarded := h.Get("Forwarded")+h.Get("X-Forwarded-For")+h.Get("X-Real-Ip")+h.Get("Via") != ""
	return !forwarded && loopback(req.RemoteAddr) && loopback(req.Host)
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
