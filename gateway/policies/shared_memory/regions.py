"""Regions of POSIX shared memory that clients registered, read and written by copies.

Segments are not mapped. If the owner of a mapped segment shrinks it, an access kills the process
(SIGBUS), and mapped bytes can change after validation. Reading and writing through the file
descriptor avoids both.

Source: POSIX, `shm_open`; docs/protocols/tensorrt-v1.md, "14. Shared memory".
"""

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

from gateway.ir import errors
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import SharedMemoryData

T = TypeVar("T")

SEGMENT_FOLDER = "/dev/shm"  # noqa: S108  # where Linux keeps POSIX segments; not for temporary files
_KEY = re.compile(r"/?([^/\x00-\x1f\x7f]{1,250})")
OWN_PREFIX = "tensor-gateway-"
"""Names of the regions in which gateways hand tensors over, and of their segments."""
# Prefixes of semaphores, and of segments that Triton shares with its own processes.
_RESERVED_PREFIXES = ("sem.", "triton_python_backend_shm", OWN_PREFIX)
# Do not follow symbolic links, block on pipes or acquire a controlling terminal.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Up to this size, a copy takes less time than a switch to a thread and back.
_INLINE_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class _OpenRegion:
    """A registered region with its segment's descriptor, closed after the last copy."""

    region: SharedRegion
    descriptor: int
    copies: int = field(default=0)
    is_unregistered: bool = field(default=False)

    def close_if_idle(self) -> None:
        """Close the descriptor of an unregistered region, unless a copy is in progress."""
        if self.is_unregistered and not self.copies and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Regions:
    """The regions of a process, by name; for one event loop.

    Args:
        most: Maximum number of regions.
        folder: Directory of the segments.
    """

    def __init__(self, most: int = 128, *, folder: str = SEGMENT_FOLDER) -> None:
        self._most = most
        self._folder = folder
        self._regions: dict[str, _OpenRegion] = {}

    def register(self, region: SharedRegion, keys: Sequence[str] = ()) -> None:
        """Open the segment of *region* and store the region by its name.

        Args:
            region: The region.
            keys: Patterns of the keys that clients may use; none allows each.

        Raises:
            Forbidden: None of *keys* allows its key.
            RegionExists: A region with this name is registered.
            RegionUnusable: The segment cannot be opened.
            InvalidRequest: The key is not the name of a segment, the region exceeds it, or it is a
                CUDA region.
            TooLarge: The maximum number of regions is registered.
        """
        if region.name in self._regions:
            raise errors.RegionExists(
                f"a region with the name {region.name!r} is already registered"
            )
        if region.device is not None:
            raise errors.InvalidRequest(
                f"region {region.name!r} is a CUDA region, which is supported only if regions are "
                "forwarded (shared_memory: forward)"
            )
        check_room(len(self._regions), self._most)
        if keys:
            check_key(region, keys)
        descriptor = _open(region, self._folder, _FLAGS)
        try:
            _check_within(region, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        self._regions[region.name] = _OpenRegion(region, descriptor)

    def unregister(self, name: str) -> None:
        """Unregister a region, or all regions with ""; ignores an unknown region."""
        for each in [name] if name else list(self._regions):
            opened = self._regions.pop(each, None)
            if opened is not None:
                opened.is_unregistered = True
                opened.close_if_idle()

    def list_regions(self) -> tuple[SharedRegion, ...]:
        """Return the regions in the order of their registration."""
        return tuple([opened.region for opened in self._regions.values()])

    def close(self) -> None:
        """Unregister all regions; may be called twice."""
        self.unregister("")

    def check(self, what: str, shared: SharedMemoryData) -> None:
        """Reject a reference that is not within a registered region.

        Raises:
            RegionNotFound: The region is not registered.
            InvalidRequest: The reference exceeds the region.
        """
        self._find(what, shared)

    async def read(self, what: str, shared: SharedMemoryData) -> memoryview:
        """Return a copy of the bytes at *shared*.

        Args:
            what: The tensor, for errors.
            shared: The reference.

        Raises:
            RegionNotFound, InvalidRequest: As `check`.
            RegionUnusable: The owner shrank the segment.
        """
        opened = self._find(what, shared)
        offset = opened.region.offset + shared.offset

        def copy() -> bytes:
            return _read(opened.descriptor, shared.size_bytes, offset)

        data = await _run_copy(what, opened, shared.size_bytes, copy)
        if len(data) != shared.size_bytes:
            raise _segment_too_small(what, shared, len(data))
        return memoryview(data)

    async def write(self, what: str, shared: SharedMemoryData, data: memoryview) -> None:
        """Copy *data* to *shared*.

        Raises:
            RegionNotFound, InvalidRequest: As `check`.
            RegionUnusable: *data* is larger than *shared*, or the owner shrank the segment.
        """
        opened = self._find(what, shared)
        if data.nbytes > shared.size_bytes:
            raise errors.RegionUnusable(
                f"{what} has {data.nbytes} bytes, the request reserves {shared.size_bytes} in "
                f"region {shared.region!r}"
            )
        offset = opened.region.offset + shared.offset

        def copy() -> int:
            room = os.fstat(opened.descriptor).st_size - offset
            if room < data.nbytes:  # writing would enlarge the segment
                return max(room, 0)
            return _write(opened.descriptor, data, offset)

        written = await _run_copy(what, opened, data.nbytes, copy)
        if written != data.nbytes:
            raise _segment_too_small(what, shared, written)

    def _find(self, what: str, shared: SharedMemoryData) -> _OpenRegion:
        opened = self._regions.get(shared.region)
        if opened is None:
            raise errors.RegionNotFound(
                f"{what} refers to the unregistered shared memory region {shared.region!r}"
            )
        check_place(what, shared, opened.region)
        return opened


def is_own(name: str) -> bool:
    """Return whether a gateway hands tensors over in the region *name*."""
    return name.startswith(OWN_PREFIX)


def check_room(count: int, most: int) -> None:
    """Raise TooLarge if *most* regions are registered."""
    if count >= most:
        raise errors.TooLarge(
            f"{count} regions are registered, at most {most} are allowed", limit="shared_regions"
        )


def segment_name(region: SharedRegion) -> str:
    """Return the name of the segment of *region*, without a slash.

    Raises:
        InvalidRequest: The key is not a valid name, or has a reserved prefix.
    """
    found = _KEY.fullmatch(region.key)
    name = "" if found is None else found[1]
    if name in ("", ".", "..") or name.startswith(_RESERVED_PREFIXES):
        raise errors.InvalidRequest(
            f"region {region.name!r} has the key {region.key!r}; expected the name of a segment "
            "such as /name"
        )
    return name


def check_key(region: SharedRegion, keys: Sequence[str]) -> None:
    """Check that one of the patterns *keys* allows the key of *region*.

    Raises:
        InvalidRequest: The key is not a valid name, or has a reserved prefix.
        Forbidden: No pattern matches.
    """
    name = segment_name(region)
    if not any(fnmatchcase(name, pattern.removeprefix("/")) for pattern in keys):
        raise errors.Forbidden(
            f"region {region.name!r} has the key {region.key!r}, which the listener does not "
            "allow (shared_memory: keys)"
        )


def check_segment(region: SharedRegion, folder: str) -> None:
    """Check the size of the segment of *region*; needs no permission to read it.

    Raises:
        InvalidRequest: The key is not the name of a segment, or the region exceeds it.
        RegionUnusable: The segment does not exist.
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
        why = error.strerror if isinstance(error, OSError) else "invalid file name"
        raise errors.RegionUnusable(
            f"region {region.name!r}: the segment {region.key!r} cannot be opened: {why}"
        ) from error


def check_place(what: str, shared: SharedMemoryData, region: SharedRegion) -> None:
    """Reject a reference that is not within *region*.

    Raises:
        InvalidRequest: It exceeds the region.
    """
    if shared.offset + shared.size_bytes > region.size_bytes:
        raise errors.InvalidRequest(
            f"{what} refers to {shared.size_bytes} bytes from byte {shared.offset} of region "
            f"{shared.region!r}, which has {region.size_bytes} bytes"
        )


def _check_within(region: SharedRegion, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise errors.RegionUnusable(
            f"region {region.name!r}: {region.key!r} is not a shared memory segment"
        )
    if not region.size_bytes or region.offset + region.size_bytes > found.st_size:
        raise errors.InvalidRequest(
            f"region {region.name!r} has {region.size_bytes} bytes from byte {region.offset} of "
            f"segment {region.key!r}, which has {found.st_size} bytes"
        )


async def _run_copy(what: str, opened: _OpenRegion, size: int, copy: Callable[[], T]) -> T:
    """Run *copy*, in a thread if it is large; the region stays open until it ends."""
    try:
        if size <= _INLINE_COPY_BYTES:
            return copy()
        return await asyncio.shield(_in_thread(opened, copy))
    except OSError as error:  # for example, no memory for unused pages of the segment
        raise errors.RegionUnusable(
            f"{what} cannot be copied: region {opened.region.name!r}: {error.strerror}"
        ) from error


def _in_thread(opened: _OpenRegion, copy: Callable[[], T]) -> asyncio.Future[T]:
    """Start *copy*; the region stays open until its thread ends, also if the caller cancels."""
    opened.copies += 1

    def on_done(future: asyncio.Future[T]) -> None:
        opened.copies -= 1
        opened.close_if_idle()
        # Retrieve the exception, so that asyncio does not log it if the caller cancelled.
        with contextlib.suppress(asyncio.CancelledError):
            future.exception()

    future = asyncio.get_running_loop().run_in_executor(None, copy)
    future.add_done_callback(on_done)
    return future


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Return *size* bytes, or fewer at the end of the segment."""
    data = os.pread(descriptor, size, offset)
    more = data
    while more and len(data) < size:  # one call returns at most 2 GiB
        more = os.pread(descriptor, size - len(data), offset + len(data))
        data += more
    return data


def _write(descriptor: int, data: memoryview, offset: int) -> int:
    """Write all of *data*, and return its size."""
    rest = data.cast("B")
    while rest.nbytes:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
    return data.nbytes


def _segment_too_small(what: str, shared: SharedMemoryData, found: int) -> errors.RegionUnusable:
    return errors.RegionUnusable(
        f"{what} refers to {shared.size_bytes} bytes of region {shared.region!r}, whose owner "
        f"shrank the segment: {found} bytes remain"
    )
