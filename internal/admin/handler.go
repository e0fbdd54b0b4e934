package admin

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// HealthHandler serves the health endpoints.
func HealthHandler(h *Health) http.Handler {
	mux := http.NewServeMux()
	addHealth(mux, h)
	return mux
}

// Handler serves the health endpoints, and /metrics, in the OpenMetrics format for a scraper
// that asks for it.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	addHealth(mux, o.Health)
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{
		EnableOpenMetrics:   true,
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            zap.NewStdLog(o.Log.Named("metrics")),
		MaxRequestsInFlight: 8,
	}))
	return mux
}

func addHealth(mux *http.ServeMux, h *Health) {
	live := func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "live"})
	}
	ready := func(w http.ResponseWriter, req *http.Request) {
		rep, status := h.Report(), http.StatusOK
		if !fromHere(req) {
			rep = rep.brief()
		}
		if !rep.Ready {
			status = http.StatusServiceUnavailable
		}
		reply(w, status, rep)
	}
	mux.HandleFunc("GET /health/live", live)
	mux.HandleFunc("GET /healthz", live)
	mux.HandleFunc("GET /health/ready", ready)
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "weft\n/health/live\n/health/ready\n/metrics\n")
	})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(body) // the client may be gone
}
