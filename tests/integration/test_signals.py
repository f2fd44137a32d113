"""Signals to a gateway in a process of its own, alone and with workers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.config.load import load_file
from gateway.processes.channel import WorkerSetup
from gateway.processes.worker_process import launch
from gateway.processes.worker_slot import WorkerSlot
from tests.integration import workers_kit as kit
from tests.integration.cli_kit import get, serving
from tests.integration.test_log_output import answers, ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True, scope="module")
def forked_processes() -> None:
    """Processes of these tests start from nothing, as those of a user do."""


CONFIG = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:{admin}", metrics: null, audit: audit.log}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
telemetry: {{log: {{access: {{path: calls.log}}}}}}
lifecycle: {{pre_stop: {pre_stop}, drain: 5s}}
"""
_LONG_S = 60
_UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def config(folder: Path, workers: int = 1, admin: int = 0, pre_stop: str = "0s") -> Path:
    """Write a configuration and return its path."""
    path = folder / "gateway.yaml"
    path.write_text(CONFIG.format(workers=workers, admin=admin, pre_stop=pre_stop))
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupt_skips_pre_stop(tmp_path: Path, workers: int) -> None:
    """Ctrl-C waits for calls in flight, but for no load balancer."""
    path = config(tmp_path, workers, pre_stop=f"{_LONG_S}s")
    with serving(str(path), patience_s=kit.PATIENCE_S) as running:
        started = time.monotonic()
        assert 0 == running.stop(signal.SIGINT)
        assert time.monotonic() - started < _LONG_S / 2
        assert "Traceback" not in "".join(running.log)


def test_interrupt_during_the_start_skips_pre_stop(tmp_path: Path) -> None:
    """Workers that serve already have no more calls from a load balancer than the others."""
    path = config(tmp_path, 2, pre_stop=f"{_LONG_S}s")
    # A shell lets its background jobs, which tests may be, ignore SIGINT.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "gateway", "serve", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            assert any(b"worker started" in line for line in process.stderr)
            process.send_signal(signal.SIGINT)
            assert 0 == process.wait(_LONG_S / 2)
        finally:
            process.kill()


@pytest.mark.parametrize("is_serving", [False, True])
async def test_only_a_serving_worker_waits_for_load_balancers(
    tmp_path: Path, *, is_serving: bool
) -> None:
    """The supervisor's word counts, because a stop may arrive just before or after "started"."""
    loaded = load_file(config(tmp_path, pre_stop="3s"))
    worker = await launch(WorkerSetup(loaded, WorkerSlot(1, 1), should_log_warnings=False))
    await worker.wait_started()
    if is_serving:
        worker.send({"request": "serving"})
        assert await worker.ready()
    started = time.monotonic()
    worker.stop()
    assert 0 == await worker.wait()
    assert (time.monotonic() - started >= 3) == is_serving


@pytest.mark.parametrize("workers", [1, 2])
def test_log_files_are_reopened(tmp_path: Path, workers: int) -> None:
    """SIGUSR1 makes a new file where one was moved away, without a call; SIGUSR2 does nothing."""
    files = [tmp_path / "calls.log", tmp_path / "audit.log"]
    with serving(str(config(tmp_path, workers)), patience_s=kit.PATIENCE_S) as running:
        for each in files:
            each.rename(each.with_suffix(".1"))
        running.process.send_signal(signal.SIGUSR2)
        running.process.send_signal(signal.SIGUSR1)
        kit.eventually(lambda: all(each.exists() for each in files))
        assert (200, {"ready": True}) == get(running.url("/readyz", "admin"))
        kit.eventually(lambda: len(kit.events(running, "log files reopened")) == 1)
        assert 0 == running.stop()


def can_unshare() -> bool:
    """Return whether this process may start a container of its own."""
    if shutil.which(_UNSHARE[0]) is None:
        return False
    return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a PID namespace")
@pytest.mark.parametrize("workers", [1, 2])
def test_first_process_of_a_container(tmp_path: Path, workers: int) -> None:
    """It reaps orphans, and the second SIGTERM ends it at once."""
    (admin,) = ports(1)
    path = config(tmp_path, workers, admin, pre_stop=f"{_LONG_S}s")
    command = [*_UNSHARE, sys.executable, "-m", "gateway", "serve", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as container:
        try:
            kit.eventually(lambda: container.poll() is not None or answers(f"127.0.0.1:{admin}"))
            (first,) = children(container.pid)
            before = children(first)
            start = ["nsenter", f"--target={first}", "--pid", "sh", "-c", "(sleep 1 &)"]
            subprocess.run(start, check=True)
            (orphan,) = set(children(first)) - set(before)
            kit.eventually(lambda: not Path(f"/proc/{orphan}").exists())
            os.kill(first, signal.SIGTERM)
            kit.eventually(lambda: get(f"http://127.0.0.1:{admin}/readyz")[0] == 503)
            os.kill(first, signal.SIGTERM)
            assert 128 + signal.SIGTERM == container.wait(kit.PATIENCE_S)
        finally:
            container.kill()


def children(pid: int) -> list[int]:
    """Return the ids of the children of a process, as this one sees them."""
    return [
        int(each)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for each in path.read_text().split()
    ]
