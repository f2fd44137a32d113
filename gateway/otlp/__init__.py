"""Export to OpenTelemetry: traces of calls, and the metrics and log lines of the gateway.

`exporters` starts the SDK from the variables `OTEL_*`. `spans` has the layers that make spans. This
is the only package that imports `opentelemetry`, and the composition root imports it only if the
configuration switches it on. It needs the extra `otel`.
"""
