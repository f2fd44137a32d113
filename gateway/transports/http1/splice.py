"""Splice: moves a body from one socket to the other without copying its bytes into the process.

They go through a pipe, which holds references to pages of the kernel.  The event loop owns the
descriptors of its transports, so they are duplicated; neither transport reads or writes meanwhile.
The pipe is filled only while it is empty.  So a move that would block has one possible reason:
nothing has arrived where the pipe is empty, and the sink is full where it is not.
"""

import asyncio
import fcntl
import os
import socket
from typing import Any, Final, Protocol

PIPE_BYTES: Final = 384 * 1024
"""The most that is between the sockets.  The reservation of the body counts it."""

_MOVES: Final = 8
"""Fillings of the pipe in one turn of the loop: other connections wait for up to 3 MiB."""

_CLOSED: Final = -1
_CAN_SPLICE: Final = hasattr(os, "splice")


class SplicedBody(Protocol):
    """The body that is moved, as its splice sees it."""

    def count_received(self, size: int, /) -> None:
        """Note that *size* bytes have left the socket of the client."""
        ...

    def count_sent(self, size: int, /) -> None:
        """Note that *size* bytes have entered the socket of the upstream."""
        ...

    def hold_clock(self) -> None:
        """Leave the time from now on out of account: the upstream is slower than the client."""
        ...

    def resume_clock(self) -> None:
        """Count the time again."""
        ...

    def give_back(self, rest: bytes, /) -> None:
        """Write *rest*, which was taken and not passed, and read on as without a splice."""
        ...


def splice_between(source: Any, sink: Any, size: int, body: SplicedBody) -> "Splice | None":
    """Return a splice of two transports; None where their bytes can only be copied.

    Args:
        source: The transport of the client.  It must not read from now on.
        sink: The transport of the upstream.  What it has not sent yet goes first.
        size: How many bytes to move.
        body: Is told of the progress.
    """
    if not (_CAN_SPLICE and _is_plain(source) and _is_plain(sink)):
        return None
    opened: list[int] = []
    try:
        opened += os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(opened[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        opened += [os.dup(each.get_extra_info("socket").fileno()) for each in (source, sink)]
    except OSError:  # the process has no descriptors left, or the user no pages for pipes
        for each in opened:
            os.close(each)
        return None
    return Splice(opened, sink, size, body)


def _is_plain(transport: Any) -> bool:
    """Return whether what is on the socket of *transport* is what its protocol reads and writes."""
    if transport is None or transport.get_extra_info("sslcontext") is not None:
        return False
    sock = transport.get_extra_info("socket")
    families = (socket.AF_INET, socket.AF_INET6)
    return sock is not None and sock.family in families and sock.fileno() >= 0


class Splice:
    """One body on its way.  `close` must be called before a transport of it is closed.

    Args:
        opened: The two ends of a pipe, and duplicates of the sockets of client and upstream.
        sink: The transport of the upstream.
        size: How many bytes to move.
        body: Is told of the progress.
    """

    def __init__(self, opened: list[int], sink: Any, size: int, body: SplicedBody) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe_out, self._pipe_in, self._from, self._to = opened
        self._sink = sink
        self._body = body
        self._left = size
        self._held = 0
        self._watches = (False, False)

    def move(self) -> None:
        """Move what can be moved now, and wait for more of it."""
        if self._sink.get_write_buffer_size():  # it goes first, and is written at this event too
            self._body.hold_clock()
            self._watch(reads=False, writes=True)
            return
        self._body.resume_clock()
        for _ in range(_MOVES):
            try:
                if not self._held and not self._take():
                    return
                sent = os.splice(self._pipe_out, self._to, self._held, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                break
            except OSError:  # the transport meets it as well, and its protocol knows what to do
                self._give_back()
                return
            self._held -= sent
            self._body.count_sent(sent)
            if not self._held and not self._left:
                self.close()
                return
        if self._held:
            self._body.hold_clock()
        self._watch(reads=not self._held, writes=self._held > 0)

    def _take(self) -> bool:
        """Fill the pipe; return False if this splice has ended instead."""
        most = min(self._left, PIPE_BYTES)
        size = os.splice(self._from, self._pipe_in, most, flags=os.SPLICE_F_NONBLOCK)
        if not size:
            self._give_back()  # the end of the input, which the transport reads once more
            return False
        self._held = size
        self._left -= size
        if not self._left:
            self._watch(reads=False, writes=False)
            os.close(self._from)  # the client may leave from now on
            self._from = _CLOSED
        self._body.count_received(size)
        return True

    def _give_back(self) -> None:
        """End, and leave the rest of the body to the transports."""
        rest = b""
        while len(rest) < self._held:
            rest += os.read(self._pipe_out, self._held - len(rest))
        self.close()
        self._body.give_back(rest)

    def _watch(self, *, reads: bool, writes: bool) -> None:
        """Call `move` when something has arrived, or when the sink has room, or not any more."""
        read, written = self._watches
        self._watches = (reads, writes)
        if reads and not read:
            self._loop.add_reader(self._from, self.move)
        elif read and not reads:
            self._loop.remove_reader(self._from)
        if writes and not written:
            self._loop.add_writer(self._to, self.move)
        elif written and not writes:
            self._loop.remove_writer(self._to)

    def close(self) -> None:
        """End, and drop what is in the pipe.  A second call does nothing."""
        if self._to == _CLOSED:
            return
        self._watch(reads=False, writes=False)
        for each in (self._pipe_out, self._pipe_in, self._from, self._to):
            if each != _CLOSED:
                os.close(each)
        self._to = _CLOSED
