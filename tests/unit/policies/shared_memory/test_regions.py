"""Tests of Regions: which segments are opened, and copies from and to them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    RegionExists,
    RegionNotFound,
    RegionUnusable,
    TooLarge,
)
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.policies.shared_memory.regions import Regions

CONTENT = bytes(range(256))
LARGE = 3 << 20


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """A folder with one segment of 256 bytes, called "seg"."""
    (tmp_path / "seg").write_bytes(CONTENT)
    return tmp_path


def region(
    name: str = "r", *, key: str = "/seg", size: int = 100, offset: int = 50
) -> SharedRegion:
    return SharedRegion(name=name, size_bytes=size, key=key, offset=offset)


def descriptors() -> int:
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def opened(segments: Path, *regions: SharedRegion, most: int = 8) -> Regions:
    found = Regions(most, folder=str(segments))
    for each in regions or (region(),):
        found.register(each)
    return found


async def test_bytes_are_read_at_their_offset(segments: Path) -> None:
    """A tensor's offset counts from its region, whose offset counts from the segment."""
    regions = opened(segments)
    assert bytes(await regions.read("x", SharedMemoryData("r", 10, 4))) == CONTENT[60:64]
    assert bytes(await regions.read("x", SharedMemoryData("r", 0, 100))) == CONTENT[50:150]
    assert bytes(await regions.read("x", SharedMemoryData("r", 100, 0))) == b""
    regions.close()


async def test_read_returns_a_copy(segments: Path) -> None:
    """A client that writes later does not change bytes that were already read."""
    regions = opened(segments)
    read = await regions.read("x", SharedMemoryData("r", 0, 4))
    (segments / "seg").write_bytes(bytes(256))
    assert bytes(read) == CONTENT[50:54]
    regions.close()


async def test_bytes_are_written_at_their_offset(segments: Path) -> None:
    """Only the bytes of the output are written."""
    regions = opened(segments)
    await regions.write("y", SharedMemoryData("r", 10, 8), memoryview(b"abcd"))
    assert (segments / "seg").read_bytes() == CONTENT[:60] + b"abcd" + CONTENT[64:]
    regions.close()


@pytest.mark.parametrize("key", ["/seg", "seg"])
def test_keys_are_names_of_segments(segments: Path, key: str) -> None:
    """The leading slash is optional, and the region is listed as registered."""
    regions = opened(segments, region(key=key))
    assert (region(key=key),) == regions.list_regions()
    regions.close()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "//seg",
        "/.",
        "/..",
        "..",
        "/../etc/passwd",
        "/a/b",
        "/seg\x00",
        "/seg\n",
        "/sem.lock",
        "/triton_python_backend_shm_region_1",
        "/" + "n" * 251,
    ],
)
def test_no_other_path_is_opened(segments: Path, key: str) -> None:
    """A key that is no plain segment name is rejected before a file is opened."""
    (segments / "sem.lock").touch()
    with pytest.raises(InvalidRequest, match="name of a segment"):
        opened(segments, region(key=key))


def test_only_segments_are_opened(segments: Path) -> None:
    """Links, folders, pipes and absent names are rejected without waiting."""
    outside = segments / "folder" / "secret"
    outside.parent.mkdir()
    outside.write_bytes(CONTENT)
    (segments / "link").symlink_to(outside)
    os.mkfifo(segments / "pipe")
    for key in ("/link", "/folder", "/pipe", "/absent", "/\ud800"):
        with pytest.raises(RegionUnusable, match="region 'r'"):
            opened(segments, region(key=key))


@pytest.mark.parametrize(
    ("found", "failure", "text"),
    [
        (region(size=207), InvalidRequest, "207 bytes from byte 50 of segment '/seg', .* 256"),
        (region(size=0), InvalidRequest, "0 bytes"),
        (region(offset=2**64), InvalidRequest, "which has 256"),
        (region("taken"), RegionExists, "'taken' is already"),
        (SharedRegion(name="c", size_bytes=1, device=0), InvalidRequest, "CUDA.*forward"),
    ],
)
def test_invalid_regions_are_rejected(
    segments: Path, found: SharedRegion, failure: type[GatewayError], text: str
) -> None:
    """A region must lie in its segment, have a new name and be system memory."""
    regions = opened(segments, region("taken"))
    with pytest.raises(failure, match=text):
        regions.register(found)
    assert regions.list_regions() == (region("taken"),)
    regions.close()


def test_number_of_regions_is_limited(segments: Path) -> None:
    """Unregistering a region makes room for another one."""
    regions = opened(segments, region("a"), region("b"), most=2)
    with pytest.raises(TooLarge, match="at most 2 are allowed") as caught:
        regions.register(region("c"))
    assert caught.value.limit == "shared_regions"
    regions.unregister("a")
    regions.register(region("c"))
    regions.close()


def test_descriptors_are_closed(segments: Path) -> None:
    """Rejected, unregistered and closed regions leave no descriptor open."""
    before = descriptors()
    regions = opened(segments, region("a"), region("b"), region("c"))
    assert descriptors() == before + 3
    with pytest.raises(InvalidRequest):
        regions.register(region("d", size=9999))
    regions.unregister("a")
    regions.unregister("nobody")
    assert [each.name for each in regions.list_regions()] == ["b", "c"]
    regions.unregister("")
    regions.close()
    regions.close()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("shared", "failure", "text"),
    [
        (
            SharedMemoryData("q", 0, 4),
            RegionNotFound,
            "input 'x' refers to the unregistered shared memory region 'q'",
        ),
        (
            SharedMemoryData("r", 97, 4),
            InvalidRequest,
            "4 bytes from byte 97 of region 'r', .* 100",
        ),
        (SharedMemoryData("r", 2**64, 2**64), InvalidRequest, "which has 100"),
    ],
)
async def test_reference_must_lie_in_a_region(
    segments: Path, shared: SharedMemoryData, failure: type[GatewayError], text: str
) -> None:
    """A reference outside of a region is neither read nor written."""
    regions = opened(segments)
    with pytest.raises(failure, match=text):
        regions.check("input 'x'", shared)
    with pytest.raises(failure, match=text):
        await regions.read("input 'x'", shared)
    with pytest.raises(failure, match=text):
        await regions.write("input 'x'", shared, memoryview(b""))
    regions.close()


async def test_shrunk_segment_is_an_error(segments: Path) -> None:
    """A segment that shrinks fails the request, not the process, and is not grown."""
    regions = opened(segments)
    os.truncate(segments / "seg", 60)
    with pytest.raises(RegionUnusable, match="shrank the segment: 10 bytes remain"):
        await regions.read("x", SharedMemoryData("r", 0, 100))
    with pytest.raises(RegionUnusable, match="shrank the segment: 0 bytes remain"):
        await regions.write("y", SharedMemoryData("r", 20, 4), memoryview(b"abcd"))
    assert (segments / "seg").stat().st_size == 60
    regions.close()


async def test_output_must_fit_its_reserved_bytes(segments: Path) -> None:
    """An output with more bytes than the request reserves is not written."""
    regions = opened(segments)
    with pytest.raises(RegionUnusable, match="'y' has 5 bytes, the request reserves 4"):
        await regions.write("output 'y'", SharedMemoryData("r", 0, 4), memoryview(b"abcde"))
    assert (segments / "seg").read_bytes() == CONTENT
    regions.close()


async def test_large_tensors_are_copied_in_a_thread(segments: Path) -> None:
    """A segment stays open until its copy ends."""
    (segments / "big").write_bytes(b"7" * LARGE)
    regions = opened(segments, region(key="/big", size=LARGE, offset=0))
    shared = SharedMemoryData("r", 0, LARGE)
    reading = asyncio.ensure_future(regions.read("x", shared))
    await asyncio.sleep(0)
    regions.close()
    assert bytes(await reading) == b"7" * LARGE
    regions.register(region(key="/big", size=LARGE, offset=0))
    await regions.write("y", shared, memoryview(b"8" * LARGE))
    assert (segments / "big").read_bytes() == b"8" * LARGE
    regions.close()


async def test_cancelled_copy_closes_its_descriptor(segments: Path) -> None:
    """A copy continues after its caller is cancelled, and then closes its descriptor."""
    (segments / "big").write_bytes(bytes(LARGE))
    before = descriptors()
    regions = opened(segments, region(key="/big", size=LARGE, offset=0))
    reading = asyncio.ensure_future(regions.read("x", SharedMemoryData("r", 0, LARGE)))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    regions.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)
    assert descriptors() == before


async def test_write_to_a_read_only_descriptor_is_an_error_of_the_region(segments: Path) -> None:
    """A write that the operating system rejects raises RegionUnusable with its message."""
    regions = opened(segments)
    os.close(regions._regions["r"].descriptor)
    regions._regions["r"].descriptor = os.open(segments / "seg", os.O_RDONLY)
    with pytest.raises(
        RegionUnusable, match=r"output 'y' cannot be copied: region 'r': .*descriptor"
    ):
        await regions.write("output 'y'", SharedMemoryData("r", 0, 4), memoryview(b"abcd"))
    regions.close()
