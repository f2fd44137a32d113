"""Tests of Regions: which segments are opened, and copies from and to them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway.ir.data import SharedMemoryData
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    RegionExists,
    RegionNotFound,
    RegionUnusable,
    TooLarge,
)
from gateway.ir.metadata import SharedRegion
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


async def test_bytes_are_read_from_their_place(segments: Path) -> None:
    """Offsets count from the region, whose own counts from the segment."""
    regions = opened(segments)
    assert bytes(await regions.read("x", SharedMemoryData("r", 10, 4))) == CONTENT[60:64]
    assert bytes(await regions.read("x", SharedMemoryData("r", 0, 100))) == CONTENT[50:150]
    assert bytes(await regions.read("x", SharedMemoryData("r", 100, 0))) == b""
    regions.close()


async def test_what_was_read_does_not_change(segments: Path) -> None:
    """A client that writes again after the checks changes nothing that was checked."""
    regions = opened(segments)
    read = await regions.read("x", SharedMemoryData("r", 0, 4))
    (segments / "seg").write_bytes(bytes(256))
    assert bytes(read) == CONTENT[50:54]
    regions.close()


async def test_bytes_are_written_to_their_place(segments: Path) -> None:
    """Only the bytes of the output are written; what lies around them stays."""
    regions = opened(segments)
    await regions.write("y", SharedMemoryData("r", 10, 8), memoryview(b"abcd"))
    assert (segments / "seg").read_bytes() == CONTENT[:60] + b"abcd" + CONTENT[64:]
    regions.close()


@pytest.mark.parametrize("key", ["/seg", "seg"])
def test_keys_are_names_of_segments(segments: Path, key: str) -> None:
    """The slash in front may be left out, as for shm_open; the region is told as registered."""
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
    """A key that is no plain name of a segment is refused before anything is opened."""
    (segments / "sem.lock").touch()
    with pytest.raises(InvalidRequest, match="name of a segment"):
        opened(segments, region(key=key))


def test_only_segments_are_opened(segments: Path) -> None:
    """Links, folders, pipes and names that no file has are refused without waiting."""
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
def test_wrong_regions_are_refused(
    segments: Path, found: SharedRegion, failure: type[GatewayError], text: str
) -> None:
    """A region lies in its segment, has a name of its own, and is system memory."""
    regions = opened(segments, region("taken"))
    with pytest.raises(failure, match=text):
        regions.register(found)
    assert regions.list_regions() == (region("taken"),)
    regions.close()


def test_regions_are_bounded(segments: Path) -> None:
    """As many as allowed; one that is forgotten makes room."""
    regions = opened(segments, region("a"), region("b"), most=2)
    with pytest.raises(TooLarge, match="at most 2 are allowed") as caught:
        regions.register(region("c"))
    assert caught.value.limit == "shared_regions"
    regions.unregister("a")
    regions.register(region("c"))
    regions.close()


def test_descriptors_are_given_back(segments: Path) -> None:
    """Nothing stays open of regions that are refused, forgotten or closed twice."""
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
async def test_places_lie_in_a_region(
    segments: Path, shared: SharedMemoryData, failure: type[GatewayError], text: str
) -> None:
    """A place in no region, or outside of its region, is neither read nor written."""
    regions = opened(segments)
    with pytest.raises(failure, match=text):
        regions.check("input 'x'", shared)
    with pytest.raises(failure, match=text):
        await regions.read("input 'x'", shared)
    with pytest.raises(failure, match=text):
        await regions.write("input 'x'", shared, memoryview(b""))
    regions.close()


async def test_segment_made_smaller_is_an_error(segments: Path) -> None:
    """A segment that its owner cuts short fails the request, not the process, and is not grown."""
    regions = opened(segments)
    os.truncate(segments / "seg", 60)
    with pytest.raises(RegionUnusable, match="shrank the segment: 10 bytes remain"):
        await regions.read("x", SharedMemoryData("r", 0, 100))
    with pytest.raises(RegionUnusable, match="shrank the segment: 0 bytes remain"):
        await regions.write("y", SharedMemoryData("r", 20, 4), memoryview(b"abcd"))
    assert (segments / "seg").stat().st_size == 60
    regions.close()


async def test_output_must_fit(segments: Path) -> None:
    """More bytes than the request has room for are not written."""
    regions = opened(segments)
    with pytest.raises(RegionUnusable, match="'y' has 5 bytes, the request reserves 4"):
        await regions.write("output 'y'", SharedMemoryData("r", 0, 4), memoryview(b"abcde"))
    assert (segments / "seg").read_bytes() == CONTENT
    regions.close()


async def test_large_tensors_are_copied_in_a_thread(segments: Path) -> None:
    """What takes long is copied beside the loop, and stays open until that is done."""
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


async def test_a_caller_that_leaves_leaves_nothing_open(segments: Path) -> None:
    """A copy goes on when its caller is gone, and the descriptor is closed after it."""
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


async def test_a_full_memory_is_an_error(segments: Path) -> None:
    """A copy that the system refuses is the region's fault, said in its words."""
    regions = opened(segments)
    os.close(regions._regions["r"].descriptor)
    regions._regions["r"].descriptor = os.open(segments / "seg", os.O_RDONLY)
    with pytest.raises(RegionUnusable, match="output 'y' cannot be copied: region 'r': "):
        await regions.write("output 'y'", SharedMemoryData("r", 0, 4), memoryview(b"abcd"))
    regions.close()
