"""Keys of `tls` that are missing, or that do not fit where they stand."""

from __future__ import annotations

import pytest

from gateway.app.check.check import check
from gateway.config.load import load_text

LISTENER = "version: 1\nlisteners: [{http: 8000, grpc: 8001, transport: T, tls: TLS}]\n"
UPSTREAM = (
    "version: 1\nlisteners: [{http: 8000}]\n"
    "upstreams: {up: {url: grpc://h, transport: T, tls: TLS}}\n"
)
ADMIN = "version: 1\nlisteners: [{http: 8000}]\nadmin: {address: 9901, tls: TLS}\n"
PAIR = "cert: c.pem, key: c.key"
REFERENCE = "cannot be changed for gRPC with 'transport: reference'; use 'native'"


@pytest.mark.parametrize(
    ("text", "transport", "tls", "expected"),
    [
        (LISTENER, "native", f"{{{PAIR}, ca: a.pem, client_certificates: optional}}", None),
        (LISTENER, "native", f"{{{PAIR}, min_version: 1.3}}", None),
        (LISTENER, "reference", f"{{{PAIR}, certificates: [{{{PAIR}}}]}}", None),
        (LISTENER, "native", f"{{{PAIR}, client_certificates: optional}}", "needs 'ca'"),
        (LISTENER, "native", f"{{{PAIR}, verify: false}}", "is for upstreams"),
        (LISTENER, "reference", f"{{{PAIR}, min_version: 1.3}}", REFERENCE),
        (
            LISTENER,
            "reference",
            f"{{{PAIR}, ca: a.pem, client_certificates: optional}}",
            REFERENCE,
        ),
        (UPSTREAM, "native", "{verify: false, min_version: 1.3}", None),
        (UPSTREAM, "reference", "{verify: false}", REFERENCE),
        (UPSTREAM, "native", "{client_certificates: optional}", "is for listeners"),
        (UPSTREAM, "native", f"{{certificates: [{{{PAIR}}}]}}", "is for listeners"),
        (ADMIN, "", f"{{{PAIR}}}", None),
        (ADMIN, "", "{cert: c.pem}", "'cert' or 'key' is missing; the admin port needs both"),
    ],
)
def test_keys_fit_where_they_stand(
    text: str, transport: str, tls: str, expected: str | None
) -> None:
    """The problem names the key, and what to use instead."""
    found = check(load_text(text.replace("TLS", tls).replace(": T,", f": {transport},")))
    assert (expected is not None) == bool(found)
    assert expected is None or expected in found[0].message
