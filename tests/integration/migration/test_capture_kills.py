"""`kill -9` at random moments while calls are recorded: segments stay whole, and little is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from gateway.migration.captures.capture import Capture
from gateway.migration.captures.directory import open_segments, read_manifest, sha256_of
from tests.integration import workers_kit
from tests.integration.cli_kit import serving
from tests.integration.workers_kit import connect, eventually
from tests.unit.migration.captures.kit import recorder
from tests.unit.shadow.kit import FULL, recordable, request

pytestmark = pytest.mark.slow

KILLS = 100
LOST_S = 0.25
# A busy machine may not run the thread that writes for a while, in one run of ten, and seldom for long.
BUSY_RUNS = KILLS // 10
LATE_S = 3.0

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
capture: {{directory: "{directory}", payload: full, min_free: {min_free}}}
"""


def _record_until_killed(directory: Path, prefix: str, report: int) -> None:
    """Record 500 calls a second, and write the number and time of each to a pipe."""
    made = recorder(directory, FULL)
    pause = threading.Event()
    number = 0
    while True:
        context = request().context.changed(request_id=f"{prefix}-{number}")
        made.samples("fraud", "r")
        call = recordable(request=request().changed(context=context), context=context)
        started = time.monotonic()
        made.put(call)
        os.write(report, f"{number} {started}\n".encode())
        number += 1
        pause.wait(0.002)


def _killed_run(directory: Path, prefix: str, after_s: float) -> tuple[dict[str, float], float]:
    """Kill a process that records; return the time of each of its calls, and of its end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _record_until_killed(directory, prefix, writer)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as lines:
        first = float(next(lines).split()[1])
        found = [(0, first)]
        while time.monotonic() < first + after_s:
            number, at = next(lines).split()
            found.append((int(number), float(at)))
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for line in lines.readlines():
            number, at = line.split()
            found.append((int(number), float(at)))
    return {f"{prefix}-{number}": at for number, at in found}, killed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_recorder_loses_at_most_its_last_moment(tmp_path: Path) -> None:
    """Every segment opens, checksums match, and only calls of the last moment are lost."""
    moments = random.Random(20261123)  # noqa: S311  # no secret
    runs = [
        _killed_run(tmp_path, f"run{number}", moments.uniform(0.0, 0.8)) for number in range(KILLS)
    ]
    assert open_segments(tmp_path)
    recorder(tmp_path).close()
    assert not open_segments(tmp_path)
    found = Capture(tmp_path)
    recorded = {call.call.request_id for call in found.calls()}
    assert found.verify() == (len(recorded), [])
    for entry in read_manifest(tmp_path)[0]:
        assert sha256_of(tmp_path / entry["segment"]) == entry["sha256"]
    lost = sorted(
        max((killed - at for name, at in calls.items() if name not in recorded), default=0.0)
        for calls, killed in runs
    )
    assert lost[-BUSY_RUNS - 1] < LOST_S, lost
    assert lost[-1] < LOST_S + LATE_S, lost


def test_shadow_process_writes_calls_of_a_killed_gateway(tmp_path: Path) -> None:
    """Every call that replied before the gateway was killed is in the capture."""
    config, directory = tmp_path / "gateway.yaml", tmp_path / "capture"
    config.write_text(CONFIG.format(directory=directory, min_free=0))
    with serving(str(config), patience_s=45) as gateway:
        with closing(connect(gateway)) as connection:
            for _ in range(10):
                assert workers_kit.ask(connection) == 200
            # The last call is sent in a later turn of the loop than its reply.
            eventually(lambda: "outbox_bytes 0.0" in workers_kit.metrics(gateway))
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait(45)
        eventually(lambda: directory.exists() and not open_segments(directory))
    assert Capture(directory).verify() == (10, [])


@pytest.mark.parametrize("reason", ["full", "vanished"])
def test_failing_directory_stops_the_capture_and_no_call(tmp_path: Path, reason: str) -> None:
    """The capture stops with one event, and the calls succeed and are counted as dropped."""
    config, directory = tmp_path / "gateway.yaml", tmp_path / "capture"
    config.write_text(CONFIG.format(directory=directory, min_free=99.99 if reason == "full" else 0))
    with serving(str(config), patience_s=45) as gateway:
        with closing(connect(gateway)) as connection:
            assert workers_kit.ask(connection) == 200
            if reason == "vanished":
                eventually(lambda: "capture_calls_total 1.0" in workers_kit.metrics(gateway))
                shutil.rmtree(directory)
            stopped = 'gateway_capture_dropped_total{reason="stopped"}'

            def is_stopped() -> bool:
                assert workers_kit.ask(connection) == 200
                return stopped in workers_kit.metrics(gateway)

            eventually(is_stopped)
            for _ in range(10):
                assert workers_kit.ask(connection) == 200
        assert gateway.stop() == 0
        (event,) = workers_kit.events(gateway, "capture stopped")
    assert str(directory) in event["directory"]
