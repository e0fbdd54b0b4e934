package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"go.uber.org/zap"
)

const (
	dialDeadline  = 2 * time.Second
	speakDeadline = time.Second
)

// announce probes the target and logs the result.
func (t *Tracing) announce(ctx context.Context, to target, config []zap.Field) {
	reachable, problem := probe(ctx, to)
	fields := append([]zap.Field{
		zap.String("event", "tracing.startup"), zap.Bool("enabled", true),
		zap.Bool("collector_reachable", reachable), zap.Bool("exporter_configured", true),
	}, config...)
	if problem == "" {
		t.log.Info("traces at start", fields...)
		return
	}
	t.log.Warn("traces at start: "+problem, append(fields, zap.String("problem", problem))...)
}

// probe reports whether a collector listens at to, and the problem if there is one.
func probe(ctx context.Context, to target) (reachable bool, problem string) {
	mistaken := mistakenPort(to)
	limited, cancel := context.WithTimeout(ctx, dialDeadline)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(limited, "tcp", to.url.Host)
	if err != nil {
		problem = fmt.Sprintf("the collector cannot be reached: %v", err)
		if mistaken != "" {
			problem += "; " + mistaken
		}
		return false, problem
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if !to.plain {
		return true, mistaken
	}
	_ = conn.SetDeadline(time.Now().Add(speakDeadline))
	switch got := speaks(conn, to); {
	case got == to.protocol: // whatever its port
		return true, ""
	case got == "" || mistaken != "":
		return true, mistaken
	default:
		return true, fmt.Sprintf("%s is asked for, but %s answers in the way of %s: set OTEL_EXPORTER_OTLP_PROTOCOL=%s or use the other port",
			to.protocol, to.url.Host, got, got)
	}
}

// mistakenPort names the mistake when the port is the other protocol's.
func mistakenPort(to target) string {
	other := map[string]string{ProtocolGRPC: httpPort, ProtocolHTTP: grpcPort}[to.protocol]
	if to.url.Port() != other {
		return ""
	}
	name, right := ProtocolHTTP, grpcPort
	if other == grpcPort {
		name, right = ProtocolGRPC, httpPort
	}
	return fmt.Sprintf("port %s is for OTLP over %s, but OTEL_EXPORTER_OTLP_PROTOCOL says %s: use port %s, or set the protocol to %s",
		other, name, to.protocol, right, name)
}

// speaks opens a conversation in the protocol of to and tells from the first bytes of
// the answer which one the other side speaks; "" when it does not say.
func speaks(conn io.ReadWriter, to target) string {
	hello := "OPTIONS " + tracesPath + " HTTP/1.1\r\nHost: " + to.url.Host + "\r\nConnection: close\r\n\r\n"
	if to.protocol == ProtocolGRPC { // the preface of HTTP/2 and empty settings
		hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	}
	if _, err := io.WriteString(conn, hello); err != nil {
		return ""
	}
	var head [9]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ""
	}
	switch {
	case bytes.HasPrefix(head[:], []byte("HTTP/1.")):
		return ProtocolHTTP
	case head[0] == 0 && head[3] == 4 && head[5]|head[6]|head[7]|head[8] == 0: // settings, on stream 0
		return ProtocolGRPC
	default:
		return ""
	}
}
