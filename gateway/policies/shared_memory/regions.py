"""Regions of POSIX shared memory that clients have registered: copied from, and copied to.

Nothing is mapped. A mapping of a segment that its owner makes smaller kills the process that
touches it (SIGBUS), and bytes that were checked could change under whoever uses them; reading and
writing through the file descriptor do neither.

Source: POSIX, `shm_open`; docs/protocols/tensorrt-v1.md, "14. Shared memory".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.ir.data import SharedMemoryData
from gateway.ir.errors import (
    InvalidRequest,
    RegionExists,
    RegionNotFound,
    RegionUnusable,
    TooLarge,
)
from gateway.ir.metadata import SharedRegion

T = TypeVar("T")

SEGMENT_FOLDER = "/dev/shm"  # noqa: S108  # where Linux keeps POSIX segments; not for temporary files
_KEY = re.compile(r"/?([^/\x00-\x1f\x7f]{1,250})")
# Semaphores lie beside the segments, and what Triton shares with its own processes.
_NOT_FOR_CLIENTS = ("sem.", "triton_python_backend_shm")
# A symbolic link, a pipe or a terminal is not followed, waited for or taken on.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# A copy up to here takes less than handing it to a thread and back costs others.
_AT_ONCE_BYTES = 1 << 20


@dataclass(slots=True)
class _Opened:
    """A registered region with its segment's descriptor, closed when nobody copies any more."""

    region: SharedRegion
    descriptor: int
    copying: int = field(default=0)
    forgotten: bool = field(default=False)

    def close_when_idle(self) -> None:
        """Close the descriptor of a region that is forgotten, unless a copy is under way."""
        if self.forgotten and not self.copying and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Regions:
    """The regions of a process, by name; for one event loop.

    Args:
        most: Regions at once.
        folder: Where segments lie.
    """

    def __init__(self, most: int = 128, *, folder: str = SEGMENT_FOLDER) -> None:
        self._most = most
        self._folder = folder
        self._opened: dict[str, _Opened] = {}

    def register(self, region: SharedRegion) -> None:
        """Open the segment of *region* and remember it by its name.

        Raises:
            RegionExists: The name is taken.
            RegionUnusable: The segment cannot be opened.
            InvalidRequest: The key is no name of a segment, the region does not lie within it, or
                it is CUDA's.
            TooLarge: There are as many as there may be.
        """
        if region.name in self._opened:
            raise RegionExists(f"a region is registered as {region.name!r} already")
        if region.device is not None:
            raise InvalidRequest(
                f"region {region.name!r} is CUDA's: this gateway can use system shared memory, "
                "and CUDA regions only where they are forwarded (shared_memory: forward)"
            )
        check_room(len(self._opened), self._most)
        descriptor = _open(region, self._folder, _FLAGS)
        try:
            _check_within(region, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        self._opened[region.name] = _Opened(region, descriptor)

    def unregister(self, name: str) -> None:
        """Forget a region, or with "" all of them; one that is not known is no error."""
        for each in [name] if name else list(self._opened):
            opened = self._opened.pop(each, None)
            if opened is not None:
                opened.forgotten = True
                opened.close_when_idle()

    def list_regions(self) -> tuple[SharedRegion, ...]:
        """Return the regions in the order of their registration."""
        return tuple([opened.region for opened in self._opened.values()])

    def close(self) -> None:
        """Forget all of them; harmless the second time."""
        self.unregister("")

    def check(self, what: str, shared: SharedMemoryData) -> None:
        """Refuse a place that does not lie in a registered region.

        Raises:
            RegionNotFound: No region has the name.
            InvalidRequest: It lies outside.
        """
        self._found(what, shared)

    async def read(self, what: str, shared: SharedMemoryData) -> memoryview:
        """Return a copy of the bytes at *shared*.

        Args:
            what: The tensor they are of, for errors.
            shared: Where they lie.

        Raises:
            RegionNotFound, InvalidRequest: As `check`.
            RegionUnusable: The segment has become smaller.
        """
        opened = self._found(what, shared)
        offset = opened.region.offset + shared.offset

        def copy() -> bytes:
            return _read(opened.descriptor, shared.size_bytes, offset)

        data = await _copied(what, opened, shared.size_bytes, copy)
        if len(data) != shared.size_bytes:
            raise _smaller(what, shared, len(data))
        return memoryview(data)

    async def write(self, what: str, shared: SharedMemoryData, data: memoryview) -> None:
        """Copy *data* to *shared*.

        Raises:
            RegionNotFound, InvalidRequest: As `check`.
            RegionUnusable: There is not the room, or the segment has become smaller.
        """
        opened = self._found(what, shared)
        if data.nbytes > shared.size_bytes:
            raise RegionUnusable(
                f"{what} has {data.nbytes} bytes, the request gives it {shared.size_bytes} of "
                f"region {shared.region!r}"
            )
        offset = opened.region.offset + shared.offset

        def copy() -> int:
            room = os.fstat(opened.descriptor).st_size - offset
            if room < data.nbytes:  # writing would make the segment larger than its owner has it
                return max(room, 0)
            return _write(opened.descriptor, data, offset)

        written = await _copied(what, opened, data.nbytes, copy)
        if written != data.nbytes:
            raise _smaller(what, shared, written)

    def _found(self, what: str, shared: SharedMemoryData) -> _Opened:
        opened = self._opened.get(shared.region)
        if opened is None:
            raise RegionNotFound(
                f"no region of shared memory is registered as {shared.region!r}, which {what} names"
            )
        check_place(what, shared, opened.region)
        return opened


def check_room(count: int, most: int) -> None:
    """Refuse one more region than *most*. Raises TooLarge."""
    if count >= most:
        raise TooLarge(
            f"{count} regions are registered, at most {most} are allowed", limit="shared_regions"
        )


def segment_name(region: SharedRegion) -> str:
    """Return the name of the segment of *region*, without a slash.

    Raises:
        InvalidRequest: The key is no name, or the name of something that is not for clients.
    """
    found = _KEY.fullmatch(region.key)
    name = "" if found is None else found[1]
    if name in ("", ".", "..") or name.startswith(_NOT_FOR_CLIENTS):
        raise InvalidRequest(
            f"region {region.name!r} has the key {region.key!r}, needed is the name of a "
            "segment such as /name"
        )
    return name


def check_segment(region: SharedRegion, folder: str) -> None:
    """Measure the segment of *region*, which need not be readable for the gateway.

    Raises:
        InvalidRequest: The key is no name of a segment, or the region does not lie within it.
        RegionUnusable: There is no such segment.
    """
    descriptor = _open(region, folder, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_within(region, os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _open(region: SharedRegion, folder: str, flags: int) -> int:
    try:
        return os.open(f"{folder}/{segment_name(region)}", flags)
    except (OSError, ValueError) as error:  # a lone surrogate is a ValueError
        why = error.strerror if isinstance(error, OSError) else "it cannot be a file's name"
        raise RegionUnusable(
            f"region {region.name!r}: the segment {region.key!r} cannot be opened: {why}"
        ) from error


def check_place(what: str, shared: SharedMemoryData, region: SharedRegion) -> None:
    """Refuse a place that does not lie in *region*.

    Raises:
        InvalidRequest: It lies outside.
    """
    if shared.offset + shared.size_bytes > region.size_bytes:
        raise InvalidRequest(
            f"{what} takes {shared.size_bytes} bytes from byte {shared.offset} of region "
            f"{shared.region!r}, which has {region.size_bytes}"
        )


def _check_within(region: SharedRegion, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise RegionUnusable(f"region {region.name!r}: {region.key!r} is no shared memory segment")
    if not region.size_bytes or region.offset + region.size_bytes > found.st_size:
        raise InvalidRequest(
            f"region {region.name!r} has {region.size_bytes} bytes from byte {region.offset} of "
            f"segment {region.key!r}, which has {found.st_size}"
        )


async def _copied(what: str, opened: _Opened, size: int, copy: Callable[[], T]) -> T:
    """Run *copy*, in a thread where it would keep others waiting; the region stays open for it."""
    try:
        if size <= _AT_ONCE_BYTES:
            return copy()
        return await asyncio.shield(_in_thread(opened, copy))
    except OSError as error:  # such as no memory left for pages that were never touched
        raise RegionUnusable(
            f"{what} cannot be copied: region {opened.region.name!r}: {error.strerror}"
        ) from error


def _in_thread(opened: _Opened, copy: Callable[[], T]) -> asyncio.Future[T]:
    """Start *copy*; a thread cannot be stopped, so the region waits for it, not for the caller."""
    opened.copying += 1

    def ended(copied: asyncio.Future[T]) -> None:
        opened.copying -= 1
        opened.close_when_idle()
        # Asked for here, lest it be reported of a caller that has left.
        with contextlib.suppress(asyncio.CancelledError):
            copied.exception()

    thread = asyncio.get_running_loop().run_in_executor(None, copy)
    thread.add_done_callback(ended)
    return thread


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Return *size* bytes, or as many as there are."""
    data = os.pread(descriptor, size, offset)
    more = data
    while more and len(data) < size:  # one call gives 2 GiB at most
        more = os.pread(descriptor, size - len(data), offset + len(data))
        data += more
    return data


def _write(descriptor: int, data: memoryview, offset: int) -> int:
    """Write all of *data*; return how many bytes that is."""
    rest = data.cast("B")
    while rest.nbytes:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
    return data.nbytes


def _smaller(what: str, shared: SharedMemoryData, found: int) -> RegionUnusable:
    return RegionUnusable(
        f"{what} takes {shared.size_bytes} bytes of region {shared.region!r}, whose segment has "
        f"been made smaller: {found} are left there"
    )
