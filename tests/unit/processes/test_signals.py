"""Signals of a process, and orphans of a container."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.signals import OrphanReaper, StopSignal, ignore_log_signals, on_reopen
from tests.fakes import settle

_PR_SET_CHILD_SUBREAPER = 36


async def test_first_signal_is_a_request() -> None:
    """SIGINT is an interrupt, which waits for no load balancer; SIGTERM is none."""
    for number, is_interrupt in ((signal.SIGINT, True), (signal.SIGTERM, False)):
        stop = StopSignal(is_final=False)
        assert not stop.is_set()
        signal.raise_signal(number)
        await stop.wait()
        assert (True, is_interrupt) == (stop.is_set(), stop.is_interrupt)
        signal.raise_signal(signal.SIGINT)  # a parent decides what the second one means
        await settle()
        assert is_interrupt == stop.is_interrupt


async def test_second_signal_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also process 1, which survives the signals that it sends itself."""
    ends: list[object] = []
    stop = StopSignal(is_final=True, kill=lambda: ends.append("kill"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "raise_signal", ends.append)
    monkeypatch.setattr(os, "_exit", ends.append)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await settle()
        await stop.wait()
    assert ["kill", signal.SIGTERM, 128 + signal.SIGTERM] == ends


async def test_log_signals_end_no_process() -> None:
    """SIGUSR2 does nothing, and SIGUSR1 reopens the files of logs."""
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    reopened: list[str] = []
    try:
        ignore_log_signals()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.raise_signal(number)
        on_reopen(lambda: reopened.append("files"))
        signal.raise_signal(signal.SIGUSR1)
        await settle()
    finally:
        for number, handler in zip((signal.SIGUSR1, signal.SIGUSR2), before, strict=True):
            signal.signal(number, handler)
    assert ["files"] == reopened


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Let this process inherit orphans, as process 1 does."""
    prctl = ctypes.CDLL(None).prctl
    assert 0 == prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def state(pid: int) -> str:
    """Return the state of a process: "Z" for a zombie, "" for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.mark.usefixtures("subreaper")
def test_orphans_are_reaped() -> None:
    """Zombies without another parent are gone after the second look; own children are left."""
    program = "import os; print(os.fork() or os._exit(0), os.fork() or os._exit(0))"
    with subprocess.Popen([sys.executable, "-c", "pass"]) as own:
        os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        orphans = [int(pid) for pid in found.stdout.split()]
        for pid in orphans:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        reaper = OrphanReaper()
        reaper.look()
        assert ["Z", "Z", "Z"] == [state(pid) for pid in (*orphans, own.pid)]
        own.wait()  # as the event loop does, between two looks
        reaper.look()
        assert ["", ""] == [state(pid) for pid in orphans]
    reaper.look()
