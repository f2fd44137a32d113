"""An upgrade from the previous release and back: no call is lost, and what it wrote is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from gateway.app.check.check import check
from gateway.config.load import load_file
from tests.integration.cli_kit import Running, serving, started
from tests.integration.test_hand_over import write_config
from tests.integration.workers_kit import PATIENCE_S, Load, eventually

ROOT = Path(__file__).parents[2]
# The commit of the release before this one. Raise it with each release.
PREVIOUS = os.environ.get("UPGRADE_FROM", "06ce345e")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.flaky(reruns=0)]


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
    # The finder of an editable install would find those of this release.
    environment = {**os.environ, "PYTHONPATH": str(folder), "GATEWAY_ACCELERATOR": "off"}
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
