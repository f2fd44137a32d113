"""What the previous release recorded, counted and moved is read and continued."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from tests.integration.cli_kit import Running, serving
from tests.integration.test_upgrade import previous, serving_previous
from tests.integration.workers_kit import PATIENCE_S, ask, connect, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.flaky(reruns=0)]

__all__ = ["previous"]


def test_a_capture_of_the_previous_release_is_read(tmp_path: Path, previous: Path) -> None:
    """This release lists the calls that the previous one recorded."""
    folder = tmp_path / "capture"
    arguments = ["--demo", "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "127.0.0.1:0"]
    with serving_previous(previous, *arguments, "--capture", str(folder)) as old:
        url = f"oip+http://{old.addresses['main.http']}"
        runner = CliRunner()
        pixels = "X=[" + "[" + ",".join(["0"] * 64) + "]" + "]"
        for _ in range(3):
            result = runner.invoke(command_line(["infer"]), ["infer", url, "digits", "-i", pixels])
            assert 0 == result.exit_code, result.output
        assert 0 == old.stop()
    result = CliRunner().invoke(command_line(["capture"]), ["capture", "ls", str(folder)])
    assert 0 == result.exit_code, result.output
    assert "digits" in result.stdout


SERVER = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
"""
MIGRATION = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
state: {{directory: {folder}}}
stock: {{}}
upstreams: {{old: {{url: "oip+http://{old}"}}, new: {{url: "oip+http://{new}"}}}}
routes: [{{name: r, targets: [{{upstream: old}}, {{upstream: new, weight: 0}}]}}]
migrations:
  m:
    route: r
    old: old
    new: new
    cutover: {{steps: [50, 100], bake: 1h, guards: {{errors: {{below: 1%}}}}}}
"""


def cutover(running: Running, verb: str = "", **body: int) -> dict[str, Any]:
    """Return the document of the cut-over, after a command if there is one."""
    with closing(HTTPConnection(running.addresses["admin"], timeout=PATIENCE_S)) as connection:
        path = f"/api/v1/migrations/m{verb}"
        headers = {"x-gateway-admin": "1"}
        if verb:
            connection.request("POST", path, json.dumps(body), headers)
        else:
            connection.request("GET", path)
        response = connection.getresponse()
        document = json.loads(response.read())
    assert 200 == response.status, document
    found: dict[str, Any] = document["cutover"]
    return found


def call(running: Running, count: int) -> None:
    with closing(connect(running)) as connection:
        assert [200] * count == [ask(connection) for _ in range(count)]


def test_state_and_stock_of_the_previous_release_are_continued(
    tmp_path: Path, previous: Path
) -> None:
    """A cut-over stays at its step, and callers are counted on, in both directions."""
    server, path, state = (tmp_path / name for name in ("server.yaml", "gateway.yaml", "state"))
    server.write_text(SERVER)
    with serving(str(server)) as old, serving(str(server)) as new:
        addresses = {"old": old.addresses["main.http"], "new": new.addresses["main.http"]}
        path.write_text(MIGRATION.format(folder=state, **addresses))
        with serving_previous(previous, str(path)) as former:
            cutover(former, "/start")
            cutover(former, "/pause")
            cutover(former, "/resume", at_step=1)
            eventually(lambda: cutover(former)["weight"] == 50.0)
            call(former, 3)
            assert 0 == former.stop()
        with serving(str(path)) as following:
            found = cutover(following)
            assert (1, 50.0) == (found["step"], found["weight"]), found["reason"]
            call(following, 4)
            assert 0 == following.stop()
        with serving_previous(previous, str(path)) as again:
            found = cutover(again)
            assert (1, 50.0) == (found["step"], found["weight"])
            assert 0 == again.stop()
    listed = ["stock", str(state), "--output", "json"]
    result = CliRunner().invoke(command_line(["stock"]), listed)
    assert [7] == [row["calls"] for row in json.loads(result.stdout)]
