"""The main module of the shadow process, which writes captures and asks the targets of migrations.

`worker_process.launch` runs `python -m gateway.migration.mirror.process NUMBER/COUNT DESCRIPTOR`.
The process ends at SIGTERM, or when its parent exits. Before, it writes what the sockets hold. It
has a socket to each serving process for the capture, one for each migration, and one for events.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.app.processes.channel import (
    WorkerChannel,
    WorkerSetup,
    open_channel,
    read_setup,
)
from gateway.app.run.process import (
    freeze_startup_objects,
    keep_large_buffers,
    shorten_switch_interval,
)
from gateway.app.run.signals import StopSignal, ignore_log_signals
from gateway.config.load import ConfigError
from gateway.migration.captures.recorder import CaptureRecorder
from gateway.migration.captures.sampling import CaptureOptions
from gateway.migration.captures.uploader import UploadMetrics
from gateway.migration.mirror.keeper import NAME
from gateway.migration.mirror.mirroring import Mirroring
from gateway.migration.options import EVENT_CHANNEL, captures_of
from gateway.shadow.inbox import Inbox, sample_inbox
from gateway.telemetry import error_texts, logs
from gateway.telemetry.aggregation import snapshot
from gateway.telemetry.lost_lines import LostLines

if TYPE_CHECKING:
    from gateway.migration.mirror.event_sinks import EventSinks
    from gateway.shadow.records.transfer import SampleMessage

log = structlog.get_logger(__name__)

_FAILED = 1
_NICE = 5
_KEPT_BYTES = 64 << 20


def main() -> int:
    """Write captures until a signal or the exit of the parent; return the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ignore_log_signals()
    os.nice(_NICE)
    # It then interrupts no process when it wakes up: with 10 % of the calls recorded at half load,
    # their 99th percentile is 1.6 times that without a recording, else 3 times (on two cores).
    with suppress(PermissionError):  # some sandboxes forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    keep_large_buffers(_KEPT_BYTES)
    shorten_switch_interval()
    sock = socket.socket(fileno=int(sys.argv[2]))
    try:
        setup = read_setup(sock)
    except EOFError:
        return _FAILED
    settings = setup.loaded.config.telemetry.log
    logs.configure(settings.level, settings.format, worker="shadow")
    error_texts.configure(settings.server_errors)
    return asyncio.run(_run(setup, sock))


async def _run(setup: WorkerSetup, sock: socket.socket) -> int:
    stop = StopSignal(is_final=False)
    channel = await open_channel(sock)
    sockets: dict[str, dict[int, socket.socket]] = {}
    for name, sock_of_worker in setup.parts[NAME].open().sockets.items():
        number, _, channel_name = name.partition("/")
        sockets.setdefault(channel_name, {})[int(number)] = sock_of_worker
    event_ends = sockets.pop(EVENT_CHANNEL, None)
    inboxes = {name: sample_inbox(ends) for name, ends in sockets.items()}
    events = None if event_ends is None else _event_sinks(setup, event_ends)
    mirroring = None
    recorders = []
    captures = captures_of(setup.loaded)
    try:
        for name, options in captures.items():
            recorders.append(await _start_recorder(options, inboxes[name]))
        if inboxes.keys() - captures.keys():
            mirroring = Mirroring(setup.loaded, inboxes, channel.send_large)
            await mirroring.start()
        if events is not None:
            events.start()
    except (*REASONS, StartError, ConfigError) as error:
        channel.send({"failed": reason_of(error)})
        await channel.close()
        return _FAILED
    freeze_startup_objects()
    channel.send({"started": {}})
    requests = asyncio.create_task(_handle_requests(channel, mirroring, recorders))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, requests}, return_when=asyncio.FIRST_COMPLETED)
    for inbox in inboxes.values():
        inbox.stop()
    await _finish(mirroring, events, recorders)
    await channel.close()
    for task in (requests, stopping):
        task.cancel()
    return 0


async def _finish(
    mirroring: Mirroring | None, events: EventSinks | None, recorders: list[CaptureRecorder]
) -> None:
    """Write what there is, and confirm it."""
    if events is not None:
        await events.close()
    if mirroring is not None:
        await mirroring.close()
    for recorder in recorders:
        await asyncio.to_thread(recorder.close)
    await asyncio.sleep(0)  # the last confirmations


def _event_sinks(setup: WorkerSetup, ends: Mapping[int, socket.socket]) -> EventSinks:
    from gateway.migration.mirror.event_sinks import EventSinks  # noqa: PLC0415  # if it is used

    return EventSinks(setup.loaded, ends)


async def _start_recorder(options: CaptureOptions, inbox: Inbox[SampleMessage]) -> CaptureRecorder:
    """Return a recorder that reads from *inbox*.

    Raises:
        OSError: The directory cannot be written.
    """
    recorder = CaptureRecorder(options, inbox.confirm_soon)
    await asyncio.to_thread(recorder.start)
    inbox.start(recorder)
    return recorder


async def _handle_requests(
    channel: WorkerChannel, mirroring: Mirroring | None, recorders: Sequence[CaptureRecorder]
) -> None:
    """Reply to the parent until it exits."""
    while (message := await channel.receive()) is not None:
        if "evidence_reset" in message:
            if mirroring is not None:
                mirroring.reset(message["evidence_reset"])
            continue
        if "evidence_resume" in message:
            if mirroring is not None:
                mirroring.resume(message["evidence_resume"])
            continue
        reply: dict[str, Any] = {}  # to a ping
        if message["request"] == "metrics":
            lost = LostLines({"stderr": logs.lost_lines})
            uploads = UploadMetrics([each.uploader for each in recorders])
            reply = {"metrics": list(snapshot(lost, uploads))}
        elif message["request"] == "exchange":
            wanted, found = message["document"], None
            if mirroring is not None:
                found = mirroring.sample(wanted["migration"], wanted["id"])
            reply = {"document": {"sample": found}}
        channel.send({**reply, "number": message["number"]})


if __name__ == "__main__":
    sys.exit(main())
