"""The main module of the shadow process, in which extensions write files and ask other servers.

`worker_process.launch` runs `python -m gateway.shadow.process NUMBER/COUNT DESCRIPTOR`. The process
ends at SIGTERM, or when its parent exits. Before, it handles what the sockets hold. Each extension
in it has a `ShadowPart`, with sockets to each serving process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.config.load import ConfigError
from gateway.processes.channel import (
    PartDescriptors,
    WorkerChannel,
    WorkerSetup,
    open_channel,
    read_setup,
)
from gateway.processes.process import (
    freeze_startup_objects,
    keep_large_buffers,
    shorten_switch_interval,
)
from gateway.processes.signals import StopSignal, ignore_log_signals
from gateway.registry import load_dotted
from gateway.shadow.part import MakePart, ShadowPart
from gateway.telemetry.aggregation import snapshot
from gateway.telemetry.log import error_texts, logs
from gateway.telemetry.log.lost_lines import LostLines

_FAILED = 1
_NICE = 5
_KEPT_BYTES = 64 << 20


def main() -> int:
    """Handle calls until a signal or the exit of the parent; return the exit status."""
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
    parts: dict[str, ShadowPart] = {}
    try:
        for name, descriptors in setup.parts.items():
            parts[name] = _part(name, setup, descriptors, channel)
        for part in parts.values():
            await part.start()
    except (*REASONS, StartError, ConfigError) as error:
        channel.send({"failed": reason_of(error)})
        await channel.close()
        return _FAILED
    freeze_startup_objects()
    channel.send({"started": {}})
    requests = asyncio.create_task(_handle_requests(channel, parts))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, requests}, return_when=asyncio.FIRST_COMPLETED)
    for part in parts.values():
        await part.close()
    await asyncio.sleep(0)  # the last confirmations
    await channel.close()
    for task in (requests, stopping):
        task.cancel()
    return 0


def _part(
    name: str, setup: WorkerSetup, descriptors: PartDescriptors, channel: WorkerChannel
) -> ShadowPart:
    """Return the part of an extension."""
    opened = descriptors.open()
    sockets: dict[str, dict[int, socket.socket]] = {}
    for place, sock_of_worker in opened.sockets.items():
        number, _, channel_name = place.partition("/")
        sockets.setdefault(channel_name, {})[int(number)] = sock_of_worker

    async def send(document: Mapping[str, Any]) -> None:
        await channel.send_large({"document": {name: document}})

    make: MakePart = load_dotted(opened.document["part"])
    return make(setup.loaded, sockets, send)


async def _handle_requests(channel: WorkerChannel, parts: Mapping[str, ShadowPart]) -> None:
    """Reply to the parent until it exits."""
    while (message := await channel.receive()) is not None:
        if "number" not in message:
            parts[message["part"]].receive(message["document"])
            continue
        reply: dict[str, Any] = {}  # to a ping
        if message["request"] == "metrics":
            lost = LostLines({"stderr": logs.lost_lines})
            collectors = [each for part in parts.values() for each in part.collectors]
            reply = {"metrics": list(snapshot(lost, *collectors))}
        elif message["request"] == "exchange":
            reply = {"document": parts[message["part"]].exchange(message["document"])}
        channel.send({**reply, "number": message["number"]})


if __name__ == "__main__":
    sys.exit(main())
