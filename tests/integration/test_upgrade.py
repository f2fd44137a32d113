"""An upgrade from the previous release and back: no call is lost, and what it wrote is read."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.app.check import check
from gateway.cli.commands import command_line
from gateway.config.load import load_file
from tests.integration.cli_kit import Running, serving, started
from tests.integration.test_hand_over import write_config
from tests.integration.workers_kit import PATIENCE_S, Load

ROOT = Path(__file__).parents[2]
# The commit of the release before this one. Raise it with each release.
PREVIOUS = "06ce345e"
pytestmark = [pytest.mark.timeout(300), pytest.mark.flaky(reruns=0)]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package and the examples of the previous release."""
    command = ["git", "-C", str(ROOT), "archive", PREVIOUS, "gateway", "config"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history has no commit {PREVIOUS}: this is a source archive")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


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


def answer_more(loads: list[Load]) -> None:
    """Wait until each client has got responses since now."""
    before = [load.answered for load in loads]
    deadline = time.monotonic() + PATIENCE_S
    while not all(load.answered > each + 20 for load, each in zip(loads, before, strict=True)):
        assert time.monotonic() < deadline, "the next gateway does not respond"
        time.sleep(0.05)


def test_hand_over_to_this_release_and_back(tmp_path: Path, previous: Path) -> None:
    """Both listen on the same addresses meanwhile; HTTP and gRPC lose nothing, in both directions."""
    path = str(write_config(tmp_path))
    with ExitStack() as stack:
        old = stack.enter_context(serving_previous(previous, path))
        loads = [Load(old, 2), Load(old, 1, keep=False), Load(old, 2, grpc=True)]
        with ExitStack() as asking:
            for load in loads:
                asking.enter_context(load)
            answer_more(loads)
            new = stack.enter_context(serving(path, patience_s=PATIENCE_S))
            assert 0 == old.stop()
            answer_more(loads)
            again = stack.enter_context(serving_previous(previous, path))
            assert 0 == new.stop()
            answer_more(loads)
        assert [[] for _ in loads] == [load.lost for load in loads]
        assert 0 == again.stop()


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
