"""An upgrade from the previous release and back: no call is lost, and what it wrote is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.app.check import check
from gateway.cli.commands import command_line
from gateway.config.load import load_file
from tests.integration.cli_kit import Running, serving, started
from tests.integration.test_hand_over import write_config
from tests.integration.workers_kit import PATIENCE_S, Load, ask, connect, eventually

ROOT = Path(__file__).parents[2]
# The commit of the release before this one. Raise it with each release.
PREVIOUS = os.environ.get("UPGRADE_FROM", "06ce345e")
pytestmark = [pytest.mark.timeout(300), pytest.mark.flaky(reruns=0)]


def unpack_previous(folder: Path, *paths: str) -> None:
    """Write the files of the previous release, or those below *paths*, into a folder."""
    command = ["git", "-C", str(ROOT), "archive", PREVIOUS, *paths]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history has no commit {PREVIOUS}: this is a source archive")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package and the examples of the previous release."""
    folder = tmp_path_factory.mktemp("previous")
    unpack_previous(folder, "gateway", "config")
    return folder


@pytest.fixture(scope="module")
def previous_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the unpacked wheel of the previous release, without compiled functions."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    unpack_previous(sources)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    # Its compiled functions are optional, and would take a minute.
    environment = {**os.environ, "CC": "false", "GATEWAY_PURE": "1"}
    done = subprocess.run(
        [*command, str(sources)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    shutil.unpack_archive(wheel, folder / "installed", "zip")
    return folder / "installed"


@contextmanager
def serving_previous(folder: Path, *arguments: str) -> Iterator[Running]:
    """Run `gateway serve` of the previous release; it has no compiled functions."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", *arguments],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    running = Running(process, process.stderr)  # type: ignore[arg-type]  # it has the same methods
    with started(running):
        yield running


def answer_more(load: Load, count: int) -> None:
    """Wait until the clients have got so many responses since now; they may take their time."""
    target = load.answered + count
    while load.answered < target:
        before = load.answered
        eventually(lambda before=before: load.answered > before)  # type: ignore[misc]  # bound here


def answer_all(loads: list[Load], calls: int) -> None:
    """Wait until there are so many more responses: a tenth on new connections, half over gRPC."""
    for load, share in zip(loads, (0.4, 0.1, 0.5), strict=True):
        answer_more(load, int(calls * share))


def hand_over_and_back(path: str, previous: Path, calls: int) -> None:
    """Hand over to this release and back, with so many calls before, between and after.

    Half of them are over HTTP, some of these each on a connection of its own, and half over gRPC.
    """
    with ExitStack() as stack:
        old = stack.enter_context(serving_previous(previous, path))
        loads = [Load(old, 2), Load(old, 1, keep=False), Load(old, 2, grpc=True)]
        with ExitStack() as asking:
            for load in loads:
                asking.enter_context(load)
            answer_all(loads, calls)
            new = stack.enter_context(serving(path, patience_s=PATIENCE_S))
            assert 0 == old.stop()
            answer_all(loads, calls)
            again = stack.enter_context(serving_previous(previous, path))
            assert 0 == new.stop()
            answer_all(loads, calls)
        assert [[] for _ in loads] == [load.lost for load in loads]
        assert 3 * calls <= sum(load.answered for load in loads)
        assert 0 == again.stop()


def test_hand_over_to_this_release_and_back(tmp_path: Path, previous: Path) -> None:
    """Both listen on the same addresses meanwhile; HTTP and gRPC lose nothing, in both directions."""
    hand_over_and_back(str(write_config(tmp_path)), previous, 200)


@pytest.mark.slow
def test_twenty_thousand_calls_during_an_upgrade_and_a_return(
    tmp_path: Path, previous_wheel: Path
) -> None:
    """None of them fails: the wheel of the previous release hands over and takes over again."""
    hand_over_and_back(str(write_config(tmp_path)), previous_wheel, 6_700)


def test_examples_of_the_previous_release_are_valid(previous: Path) -> None:
    """Each of its configurations is accepted as it was."""
    found = sorted((previous / "config").glob("*.yaml"))
    assert len(found) > 10
    assert {} == {path.name: problems for path in found if (problems := check(load_file(path)))}


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
