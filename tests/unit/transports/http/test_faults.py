"""The response to a stream that fails, and what the log has of it."""

from __future__ import annotations

from structlog.testing import capture_logs

from gateway.ir.context import Origin
from gateway.ir.errors import UpstreamError
from gateway.transports.http.faults import failure


def test_the_log_marks_the_text_of_a_server_that_ended_a_stream() -> None:
    """It may quote what the client has sent."""
    text = "input 'note': " + "4111 " * 100
    with capture_logs() as lines:
        failure(UpstreamError(text, origin=Origin("oip.http", None)))
    (line,) = lines
    assert line["error"].startswith("server said: input 'note': 4111 ")
    assert line["error"].endswith("... (394 more characters)")
