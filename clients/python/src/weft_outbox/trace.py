"""The W3C trace context of the current span, when OpenTelemetry is installed."""

from __future__ import annotations

try:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:

    def current() -> tuple[str, str]:
        """Return traceparent and tracestate: none without OpenTelemetry."""
        return "", ""

else:

    def current() -> tuple[str, str]:
        """Return traceparent and tracestate of the current span, empty when there is none."""
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get("traceparent", ""), carrier.get("tracestate", "")
