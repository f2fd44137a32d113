"""What the gateway logs about the server of an endpoint."""

from __future__ import annotations

from structlog.testing import capture_logs

from gateway.app.build.server_identity import ServerIdentity
from gateway.ir.metadata import ServerMetadata
from gateway.settings.units import parse_url
from gateway.transports.grpc.withheld import WithheldCalls


def test_a_log_line_had_the_text_of_every_weakness() -> None:
    """It has their number and where they are described, and comes once for a server."""
    identity = ServerIdentity(
        "up", "h:8001", parse_url("grpc://h:8001"), "auto", WithheldCalls(60.0, enabled=True)
    )
    with capture_logs() as lines:
        for _ in range(3):
            identity(ServerMetadata("triton", "2.51.0"))
            identity(None)
    (line,) = [each for each in lines if each["event"] == "known weaknesses"]
    assert len(identity.weaknesses()) == line["count"]
    assert line["count"] > 5
    assert "docs/protection.md" in line["described"]
    assert len(str(line)) < 250
