"""A gateway that uploads its capture, while the store is there and while it is not."""

from __future__ import annotations

import re
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.integration.cli_kit import Running, gateway, get, serving

pytestmark = pytest.mark.timeout(120)

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0"}}
models: {{simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}}}
capture:
  directory: {folder}/local
  payload: full
  segment_time: 200ms
  upload: file://{folder}/remote
  keep_local: 0s
lifecycle: {{pre_stop: 0s}}
"""
ROW = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
BODY = {"inputs": [{"name": name, **ROW} for name in ("INPUT0", "INPUT1")]}


def uploads(running: Running) -> dict[str, float]:
    with closing(HTTPConnection(running.addresses["admin"], timeout=60)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.findall(
        r'^gateway_capture_uploads_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE
    )
    return {outcome: float(count) for outcome, count in found}


def reaches(running: Running, outcome: str, least: float) -> None:
    """Wait until so many uploads have an outcome."""
    end = monotonic() + 60
    while uploads(running)[outcome] < least:
        assert monotonic() < end, uploads(running)
        sleep(0.2)


def test_segments_are_uploaded_and_counted(tmp_path: Path) -> None:
    """A store that refuses loses nothing: a file stands where its folder must be."""
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    blocker = tmp_path / "remote"
    blocker.touch()
    with serving(str(config)) as running:
        assert {"ok", "failed", "lost"} == uploads(running).keys()
        assert 200 == get(running.url("/v2/models/simple/infer"), BODY)[0]
        reaches(running, "failed", 1)
        blocker.unlink()
        reaches(running, "ok", 1)
        assert 200 == get(running.url("/v2/models/simple/infer"), BODY)[0]
        assert 0 == running.stop()
    done = gateway("capture", "verify", f"file://{tmp_path}/remote")
    assert (0, "2 whole calls, 0 problems\n") == (done.returncode, done.stdout)


def test_a_wrong_url_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    """The error names the key, what was found and what is expected."""
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(folder=tmp_path).replace("upload: file:", "upload: ftp:"))
    done = gateway("validate", str(config))
    assert 1 == done.returncode
    assert "capture.upload" in done.stdout + done.stderr
    assert "expected one of file://" in done.stdout + done.stderr
