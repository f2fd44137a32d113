"""The main module of the shadow process, which writes captures for all serving processes.

`worker_process.launch` runs `python -m gateway.app.shadow.process NUMBER/COUNT DESCRIPTOR`. The
process ends at SIGTERM, or when its parent exits. Before, it writes what the sockets hold.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping

import structlog

from gateway.app.capture_options import capture_options
from gateway.app.errors import reason_of
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
    stop_signal,
)
from gateway.app.shadow.packets import PACKET_BYTES, PacketReader
from gateway.captures.recorder import CaptureRecorder
from gateway.captures.transfer import Confirmation, decode_message, encode_confirmation
from gateway.telemetry import log as logs

log = structlog.get_logger(__name__)

_FAILED = 1
_NICE = 5
_KEPT_BYTES = 64 << 20
# More than a socket holds. A process that still sends cannot delay the end.
_LAST_PACKETS = 4096


class Inbox:
    """Passes the messages of all serving processes to a recorder, and confirmations back.

    Args:
        sockets: By the number of the serving process.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._sockets = sockets
        self._readers = {number: PacketReader() for number in sockets}
        self._unsent: dict[int, list[Confirmation]] = {number: [] for number in sockets}
        self._loop = asyncio.get_running_loop()
        self._recorder: CaptureRecorder | None = None
        self._is_reading = False

    def start(self, recorder: CaptureRecorder) -> None:
        """Announce this process, and begin to read."""
        self._recorder = recorder
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
        self._loop.call_soon_threadsafe(self._confirm, number, confirmation)

    def _confirm(self, number: int, confirmation: Confirmation) -> None:
        self._unsent[number].append(confirmation)
        self._send_confirmations()
        if self._recorder is not None and self._recorder.has_room:
            self._resume()

    def _send_confirmations(self) -> None:
        """Send what the sockets take; the rest follows with the next confirmation."""
        for number, unsent in self._unsent.items():
            while unsent:
                try:
                    self._sockets[number].send(encode_confirmation(unsent[0]))
                except (BlockingIOError, InterruptedError):
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
        """Read one packet; return whether there was one."""
        assert self._recorder is not None  # noqa: S101  # `start` sets it
        try:
            packet = self._sockets[number].recv(PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        for epoch, place, view in self._readers[number].receive(packet):
            self._recorder.put((number, epoch), place, decode_message(view), view.nbytes)
        if not self._recorder.has_room:
            self._pause()
        return True


def main() -> int:
    """Write captures until a signal or the exit of the parent; return the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(_NICE)
    keep_large_buffers(_KEPT_BYTES)
    shorten_switch_interval()
    sock = socket.socket(fileno=int(sys.argv[2]))
    try:
        setup = read_setup(sock)
    except EOFError:
        return _FAILED
    settings = setup.loaded.config.telemetry.log
    logs.configure(settings.level, settings.format, worker="shadow")
    return asyncio.run(_run(setup, sock))


async def _run(setup: WorkerSetup, sock: socket.socket) -> int:
    stop = stop_signal()
    channel = await open_channel(sock)
    sockets = {number: socket.socket(fileno=fd) for number, fd in setup.serving.items()}
    for each in sockets.values():
        each.setblocking(False)
    inbox = Inbox(sockets)
    config = setup.loaded.config.capture
    assert config is not None  # noqa: S101  # the keeper starts this process for a capture
    options = capture_options(config, setup.loaded.directory)
    recorder = CaptureRecorder(options, inbox.confirm_soon)
    try:
        await asyncio.to_thread(recorder.start)
    except OSError as error:
        channel.send({"failed": reason_of(error)})
        await channel.close()
        return _FAILED
    freeze_startup_objects()
    inbox.start(recorder)
    channel.send({"started": {}})
    requests = asyncio.create_task(_handle_requests(channel))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, requests}, return_when=asyncio.FIRST_COMPLETED)
    inbox.stop()
    await asyncio.to_thread(recorder.close)
    await asyncio.sleep(0)  # the last confirmations
    await channel.close()
    for task in (requests, stopping):
        task.cancel()
    return 0


async def _handle_requests(channel: WorkerChannel) -> None:
    """Reply to the parent until it exits."""
    while (message := await channel.receive()) is not None:
        channel.send({"ready": True, "number": message["number"]})


if __name__ == "__main__":
    sys.exit(main())
