"""Texts for upstreams whose URL names the carrier of another port: what to change."""

from typing import Final

from gateway.transports.net.tls import MAYBE_TLS, NEEDS_TLS, TLS_ALERT

SERVES_HTTP: Final = "it serves HTTP/1 on this port; for HTTP use a URL such as oip+http://"
"""Why HTTP/2 failed, and what to change."""

SERVES_GRPC: Final = "it serves gRPC on this port; for gRPC use a URL such as oip+grpc://"
"""Why HTTP/1 failed, and what to change."""

MAYBE_HTTP: Final = f"if it serves HTTP on this port, use a URL such as oip+http://; {MAYBE_TLS}"
"""A hint for a server that replies to HTTP/2 with nothing, as Triton does on its port of HTTP."""

MAYBE_GRPC: Final = f"if it serves gRPC on this port, use a URL such as oip+grpc://; {MAYBE_TLS}"
"""A hint for a server that replies to HTTP/1 with nothing, as servers of gRPC in Go do."""


def foreign_protocol(data: bytes) -> str:
    """Return what a server serves that begins a response of HTTP/1 with *data*; "" if unknown."""
    if data.startswith(TLS_ALERT):
        return f"a TLS alert: {NEEDS_TLS}"
    if data[:1] == b"\0" and data[3:4] == b"\x04" and data[5:9] == bytes(4):
        return f"HTTP/2: {SERVES_GRPC}"
    return ""
