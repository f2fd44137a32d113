"""RegionPool: the regions of shared memory of this process, and the pieces that messages get.

A region is a file in `/dev/shm` whose pages are allocated at once, so that no write can fail
later. Its process holds a lock on it (`flock`): a file without one was left by a killed process.

Source: Triton's shared memory extension; benchmarks/NOTES.md, "Shared memory of Triton".
"""

import errno
import fcntl
import grp
import mmap
import os
import secrets
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import ref

import numpy as np
import numpy.typing as npt
import structlog

from gateway.accelerator import accelerated
from gateway.policies.shared_memory.regions import OWN_PREFIX, SEGMENT_FOLDER

log = structlog.get_logger(__name__)

LEAST_BYTES: Final = 64 * 1024
"""Smaller tensors cost less as bytes of the message."""

ALIGNMENT: Final = 64
_LEAST_ALIGNMENT: Final = 16
"""That of the strings in which Triton receives raw contents over gRPC."""

_REGION_BYTES: Final = 32 << 20
_LAYOUTS: Final = 256
_DOUBTFUL_SHARE: Final = 4

Bytes = npt.NDArray[np.uint8]


class Region:
    """One file of shared memory, mapped.

    Attributes:
        name: Its name, at the server too.
        is_retired: No piece is allocated in it any more, and its file has no name.
        servers: How many endpoints have it registered.
    """

    def __init__(self, folder: str, size: int, group: str = "") -> None:
        self.name, self.size = f"{OWN_PREFIX}{secrets.token_hex(16)}", size
        self._path = Path(folder, self.name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path.stat()  # a process that started before the lock may have removed the file
            if group:
                _share(self._file, group)
            os.posix_fallocate(self._file, 0, size)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._memory: Bytes = np.frombuffer(mmap.mmap(self._file, size, flags), np.uint8)
        except BaseException:
            self.unlink()
            raise
        self.base = int(self._memory.__array_interface__["data"][0])
        self.is_retired = False
        self.servers = 0
        self._free = [(0, size)]
        self._pieces: dict[int, Piece] = {}
        self._starts: list[int] = []
        self._doubtful = 0

    @property
    def is_idle(self) -> bool:
        """Whether no message and no call uses a piece."""
        return not self._pieces

    @property
    def is_doubtful(self) -> bool:
        """Whether too much of it cannot be written again."""
        return self._doubtful * _DOUBTFUL_SHARE >= self.size

    def allocate(self, size: int, lead: int) -> "Piece | None":
        """Return a piece whose byte *lead* is aligned; None if no gap is large enough."""
        for index, (start, stop) in enumerate(self._free):
            at = start + -(start + lead) % ALIGNMENT
            if at + size > stop:
                continue
            # Lowest first: what was used a moment ago is still in the caches.
            self._free[index : index + 1] = [
                gap for gap in ((start, at), (at + size, stop)) if gap[0] < gap[1]
            ]
            piece = self._pieces[at] = Piece(self, at, size)
            insort(self._starts, at)
            return piece
        return None

    def find(self, offset: int) -> "Piece | None":
        """Return the piece at *offset*."""
        index = bisect_right(self._starts, offset) - 1
        piece = self._pieces[self._starts[index]] if index >= 0 else None
        return piece if piece is not None and offset < piece.start + piece.size else None

    def end(self, piece: "Piece") -> None:
        """Allocate the bytes of *piece* again, unless a server may still read them."""
        del self._pieces[piece.start]
        self._starts.remove(piece.start)
        if piece.is_doubtful:
            self._doubtful += piece.size
            return
        start, stop = piece.start, piece.start + piece.size
        at = bisect_right(self._free, (start, stop))
        if at < len(self._free) and self._free[at][0] == stop:
            stop = self._free.pop(at)[1]
        if at and self._free[at - 1][1] == start:
            at -= 1
            start = self._free.pop(at)[0]
        self._free.insert(at, (start, stop))

    def view(self, piece: "Piece") -> Bytes:
        """Return the memory of *piece*."""
        return self._memory[piece.start : piece.start + piece.size]

    def unlink(self) -> None:
        """Remove the name and the lock; who has mapped the region keeps it. May be called twice."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


class Piece:
    """A part of a region, used by the message that it holds and by calls that name it.

    Attributes:
        is_doubtful: A call that named it ended without a reply.
    """

    __slots__ = ("_uses", "is_doubtful", "memory", "region", "size", "start")

    def __init__(self, region: Region, start: int, size: int) -> None:
        self.region, self.start, self.size = region, start, size
        self._uses = 0
        self.is_doubtful = False
        self.memory: PieceMemory | None = None

    def acquire(self) -> None:
        """Note one more user."""
        self._uses += 1

    def release(self, *, is_doubtful: bool = False) -> None:
        """Note the end of one use.

        Args:
            is_doubtful: The server may still read the piece.
        """
        self.is_doubtful = self.is_doubtful or is_doubtful
        self._uses -= 1
        if not self._uses:
            self.region.end(self)


class PieceMemory(ref[Bytes]):
    """Refers to the array through which a message uses *piece*, and notes its end."""

    __slots__ = ("piece",)

    piece: Piece


@accelerated
def address_of(view: memoryview) -> int:
    """Return the address of the first byte of *view*, which is contiguous and not empty."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


class RegionPool:
    """The regions of this process; for one event loop.

    Args:
        most_bytes: Most bytes of regions, those included that a server may still map.
        folder: Directory of the files.
        group: Name or number of the group that may open the files; "" for none.
    """

    def __init__(self, most_bytes: int, folder: str = SEGMENT_FOLDER, group: str = "") -> None:
        self._most_bytes = most_bytes
        self._folder = folder
        self._group = group
        self._regions: list[Region] = []
        self._retired: list[Region] = []
        # Memory is freed on any thread; pieces end on that of the event loop.
        self._freed: deque[PieceMemory] = deque()
        self._free = self._freed.append
        self._leads: OrderedDict[int, int] = OrderedDict()
        self._lead = 0
        self._is_short = True
        self._is_closed = False

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions in which pieces are allocated."""
        return tuple(self._regions)

    @property
    def needs_region(self) -> bool:
        """Whether a message found no memory, and another region is allowed."""
        return self._is_short and self.region_bytes > 0

    @property
    def region_bytes(self) -> int:
        """The largest size of the next region; 0 for none."""
        size = min(_REGION_BYTES, self._most_bytes - self._used_bytes) & -mmap.PAGESIZE
        return 0 if self._is_closed or size < LEAST_BYTES else size

    @property
    def _used_bytes(self) -> int:
        return sum(region.size for region in (*self._regions, *self._retired))

    def create(self, size: int) -> Region:
        """Return a new region of at most *size* bytes, not yet part of the pool; for a thread.

        At least as much as the pool has stays free in the folder, because the server may need it.

        Raises:
            OSError: There is no memory or no folder for it, or no such group.
        """
        space = os.statvfs(self._folder)
        spare = (space.f_bavail * space.f_frsize - self._used_bytes) // 2
        size = min(size, spare) & -mmap.PAGESIZE
        if size < LEAST_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._folder)
        return Region(self._folder, size, self._group)

    def add(self, region: Region) -> None:
        """Allocate pieces in *region* from now on."""
        if self._is_closed:
            region.unlink()
            return
        self._regions.append(region)
        self._is_short = False

    def memory(self, size: int) -> memoryview | None:
        """Return memory for a message of *size* bytes; None if there is none here.

        The piece is in use until this view and all views of it are gone.
        """
        if size < LEAST_BYTES or not self._regions:
            return None
        piece = self.allocate(size, self._leads.get(size, self._lead))
        return None if piece is None else self.lend(piece)

    def lend(self, piece: Piece) -> memoryview:
        """Return the memory of *piece*, which is in use until this view and all of it are gone."""
        piece.acquire()
        # A slice of an array refers to the array that owns the bytes, and would not keep this one
        # alive. A slice of its memoryview does.
        memory = piece.region.view(piece)
        piece.memory = PieceMemory(memory, self._free)
        piece.memory.piece = piece
        return memory.data

    def allocate(self, size: int, lead: int = 0) -> Piece | None:
        """Return a piece whose byte *lead* is aligned, and that nobody uses yet; None for none."""
        self.collect()
        for region in self._regions:
            piece = region.allocate(size, lead)
            if piece is not None:
                return piece
        self._is_short = size <= _REGION_BYTES
        return None

    def find(self, view: memoryview) -> tuple[Piece, int] | None:
        """Return the piece that contains *view* and the offset in its region, if it is aligned."""
        address = address_of(view)
        for region in (*self._regions, *self._retired):
            offset = address - region.base
            if not 0 <= offset < region.size:
                continue
            piece = region.find(offset)
            if piece is None or piece.is_doubtful:
                return None
            if offset % _LEAST_ALIGNMENT:
                self._learn(piece, offset)
                return None
            return piece, offset
        return None

    def _learn(self, piece: Piece, offset: int) -> None:
        """Align messages of this size so that tensors like that at *offset* are aligned."""
        self._lead = self._leads[piece.size] = (offset - piece.start) % ALIGNMENT
        self._leads.move_to_end(piece.size)
        if len(self._leads) > _LAYOUTS:
            self._leads.popitem(last=False)

    def retire(self, region: Region) -> None:
        """Allocate nothing in *region* any more, and remove its name."""
        if region in self._regions:
            self._regions.remove(region)
            self._retired.append(region)
            region.is_retired = True
            region.unlink()
            self._is_short = True

    def collect(self) -> None:
        """End the pieces whose messages are gone, and drop regions that nobody uses."""
        while self._freed:
            piece = self._freed.popleft().piece
            piece.memory = None  # it would be a reference cycle with the piece
            piece.release()
        for region in self._regions[:]:
            if region.is_doubtful:
                self.retire(region)
        if self._retired:
            self._retired = [each for each in self._retired if each.servers or not each.is_idle]

    def close(self) -> None:
        """Remove all regions; what is mapped stays until its users end."""
        self._is_closed = True
        for region in self._regions[:]:
            self.retire(region)


def _share(file: int, group: str) -> None:
    """Let *group* read and write *file*.

    Raises:
        OSError: There is no such group, or this process is not in it.
    """
    try:
        number = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise OSError(errno.EINVAL, f"there is no group {group!r}") from None
    # The call may be forbidden where it would change nothing.
    if os.fstat(file).st_gid != number:
        os.fchown(file, -1, number)
    os.fchmod(file, 0o660)


def remove_leftovers(folder: str = SEGMENT_FOLDER) -> int:
    """Remove the files of processes that were killed; return how many."""
    removed = 0
    with suppress(OSError):  # no shared memory here
        for path in [*Path(folder).glob(f"{OWN_PREFIX}*")]:
            with suppress(OSError):  # of another user, its process runs, or it is gone
                removed += _remove_unlocked(path)
    return removed


def _remove_unlocked(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(file)
    return 1


def has_file(name: str, folder: str = SEGMENT_FOLDER) -> bool:
    """Return whether the file of a region exists."""
    return Path(folder, name).exists()
