"""Commands on a terminal: what they write there is a picture, and no text of controls."""

from __future__ import annotations

import json
import os
import pty
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.integration import fork_server

TRAFFIC = {
    "window_s": 2.0,
    "per_s": 1.0,
    "rejected_per_s": 0.0,
    "connections": 1,
    "routes": [],
    "targets": [],
    "models": [],
    "endpoints": [],
}
STATUS = {
    "version": "1",
    "ready": True,
    "reason": "",
    "started": "now",
    "config": {"file": "a", "sha256": "0" * 64},
    "listeners": {},
    "routes": [],
    "upstreams": [],
    "models": [],
    "limits": {},
    "warnings": [],
    "runtime": {"changes": {}, "lines": []},
    "traffic": TRAFFIC,
}


class _Admin(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(STATUS).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Write no log."""


@contextmanager
def admin_port() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "words", [("top", "--count", "1"), ("status", "--watch")], ids=["top", "status"]
)
def test_a_view_clears_the_terminal(words: tuple[str, ...]) -> None:
    """The controls are controls there; as text they would be shown."""
    ours, theirs = pty.openpty()
    with admin_port() as address:
        process = fork_server.start([*words, "--admin", address], theirs, theirs)
        os.close(theirs)
        shown = b""
        try:
            while b"Tensor Gateway" not in shown and b"calls/s" not in shown:
                shown += os.read(ours, 65_536)
            if words[0] == "status":
                process.send_signal(signal.SIGINT)
            assert 0 == process.wait(60)
        finally:
            process.kill()
            os.close(ours)
    assert shown.startswith(b"\x1b[H\x1b[2J")
    assert b"\\x1b" not in shown
