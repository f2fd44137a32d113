"""The main module of the shadow process, which writes captures and asks the targets of migrations.

`worker_process.launch` runs `python -m gateway.migration.mirror.process NUMBER/COUNT DESCRIPTOR`.
The process ends at SIGTERM, or when its parent exits. Before, it writes what the sockets hold. It
has a socket to each serving process for the capture, and one for each migration.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import structlog

from gateway.app.errors import REASONS, StartError, reason_of
from gateway.app.process import (
    freeze_startup_objects,
    keep_large_buffers,
    shorten_switch_interval,
)
from gateway.app.processes.channel import (
    WorkerChannel,
    WorkerSetup,
    open_channel,
    read_setup,
)
from gateway.app.signals import StopSignal, ignore_log_signals
from gateway.config.load import ConfigError
from gateway.migration.captures.recorder import CaptureRecorder, Sender
from gateway.migration.captures.sampling import CaptureOptions
from gateway.migration.captures.transfer import (
    Confirmation,
    SampleMessage,
    decode_message,
    encode_confirmation,
)
from gateway.migration.mirror.keeper import NAME
from gateway.migration.mirror.mirroring import Mirroring
from gateway.migration.mirror.packets import PACKET_BYTES, PacketReader
from gateway.migration.mirror.upload_metrics import UploadMetrics
from gateway.migration.options import captures_of
from gateway.telemetry import error_texts, logs
from gateway.telemetry.aggregation import snapshot
from gateway.telemetry.lost_lines import LostLines

log = structlog.get_logger(__name__)

_FAILED = 1
_NICE = 5
_KEPT_BYTES = 64 << 20
# More than a socket holds. A process that still sends cannot delay the end.
_LAST_PACKETS = 4096


class Receiver(Protocol):
    """Receives the messages of serving processes: a recorder, or a mirror."""

    @property
    def has_room(self) -> bool:
        """Whether it takes further messages now."""
        ...

    def put(self, sender: Sender, number: int, message: SampleMessage, size: int) -> None:
        """Take a message; never waits and never raises."""
        ...


class Inbox:
    """Passes the messages of all serving processes to a receiver, and confirmations back.

    Args:
        sockets: By the number of the serving process.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._sockets = sockets
        self._readers = {number: PacketReader() for number in sockets}
        self._unsent: dict[int, list[Confirmation]] = {number: [] for number in sockets}
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._is_reading = False

    def start(self, receiver: Receiver) -> None:
        """Announce this process, and begin to read."""
        self._receiver = receiver
        for number in self._sockets:
            self._unsent[number].append(Confirmation())
        self._send_confirmations()
        self._resume()

    def stop(self) -> None:
        """Read what the sockets hold, and nothing after it."""
        self._pause()
        for number in self._sockets:
            for _ in range(_LAST_PACKETS):
                if not self._receive(number):
                    break

    def confirm_soon(self, number: int, confirmation: Confirmation) -> None:
        """Send a confirmation; called on the thread of the recorder."""
        self._loop.call_soon_threadsafe(self.confirm, number, confirmation)

    def confirm(self, number: int, confirmation: Confirmation) -> None:
        """Send a confirmation."""
        self._unsent[number].append(confirmation)
        self._send_confirmations()
        if self._receiver is not None and self._receiver.has_room:
            self._resume()

    def _send_confirmations(self) -> None:
        """Send what the sockets take; the rest follows with the next confirmation."""
        for number, unsent in self._unsent.items():
            while unsent:
                try:
                    self._sockets[number].send(encode_confirmation(unsent[0]))
                except (BlockingIOError, InterruptedError):
                    break
                except (BrokenPipeError, ConnectionResetError):  # the gateway has exited
                    unsent.clear()
                    break
                del unsent[0]

    def _resume(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            for number, sock in self._sockets.items():
                self._loop.add_reader(sock.fileno(), self._receive, number)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            for sock in self._sockets.values():
                self._loop.remove_reader(sock.fileno())

    def _receive(self, number: int) -> bool:
        """Read one packet; return whether there may be another."""
        assert self._receiver is not None  # noqa: S101  # `start` sets it
        try:
            packet = self._sockets[number].recv(PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:  # the gateway has exited; what it sent can still be read
            return True
        if not packet:
            return False
        for epoch, place, view in self._readers[number].receive(packet):
            self._receiver.put((number, epoch), place, decode_message(view), view.nbytes)
        if not self._receiver.has_room:
            self._pause()
        return True


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
    inboxes = {name: Inbox(ends) for name, ends in sockets.items()}
    mirroring = None
    recorders = []
    captures = captures_of(setup.loaded)
    try:
        for name, options in captures.items():
            recorders.append(await _start_recorder(options, inboxes[name]))
        if inboxes.keys() - captures.keys():
            mirroring = Mirroring(setup.loaded, inboxes, channel.send)
            await mirroring.start()
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
    if mirroring is not None:
        await mirroring.close()
    for recorder in recorders:
        await asyncio.to_thread(recorder.close)
    await asyncio.sleep(0)  # the last confirmations
    await channel.close()
    for task in (requests, stopping):
        task.cancel()
    return 0


async def _start_recorder(options: CaptureOptions, inbox: Inbox) -> CaptureRecorder:
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
        lost = LostLines({"stderr": logs.lost_lines})
        uploads = UploadMetrics([each.uploader for each in recorders])
        reply: dict[str, Any] = {"metrics": [*snapshot(lost), *snapshot(uploads)]}
        if message["request"] == "exchange":
            wanted, found = message["document"], None
            if mirroring is not None:
                found = mirroring.sample(wanted["migration"], wanted["id"])
            reply = {"document": {"sample": found}}
        channel.send({**reply, "number": message["number"]})


if __name__ == "__main__":
    sys.exit(main())
