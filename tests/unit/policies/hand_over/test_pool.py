"""Tests of RegionPool: pieces of shared memory that are never written while a server may read them."""

from __future__ import annotations

import fcntl
import gc
import grp
import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gateway.policies.hand_over.pool import (
    ALIGNMENT,
    Region,
    RegionPool,
    has_file,
    remove_leftovers,
)

KIB, MIB = 1024, 1 << 20


def pool_of(folder: Path, size: int = MIB, most: int = 0) -> RegionPool:
    """Return a pool with one region of *size* bytes, and room for regions of *most* bytes."""
    pool = RegionPool(most or size, str(folder))
    pool.add(pool.create(size))
    return pool


def test_region_is_a_private_file_that_is_allocated(tmp_path: Path) -> None:
    """The name has 128 random bits, only the owner can open it, and all its pages exist."""
    pool = pool_of(tmp_path)
    (path,) = tmp_path.iterdir()
    found = path.stat()
    assert (0o600, MIB) == (found.st_mode & 0o777, found.st_size)
    assert found.st_blocks * 512 >= MIB
    assert [path.name] == [region.name for region in pool.regions]
    assert 32 == len(path.name.removeprefix("tensor-gateway-"))


def test_small_messages_get_no_memory(tmp_path: Path) -> None:
    """A message below 64 KiB, and one of a pool without regions, is received as ever."""
    pool = pool_of(tmp_path)
    assert pool.memory(64 * KIB - 1) is None
    assert RegionPool(MIB, str(tmp_path)).memory(64 * KIB) is None


def test_memory_is_used_until_its_last_view_is_gone(tmp_path: Path) -> None:
    """Slices, read-only views and arrays of a message keep its piece; then it is used again."""
    pool = pool_of(tmp_path, 128 * KIB)
    memory = pool.memory(128 * KIB)
    assert memory is not None
    array = np.frombuffer(memory[64:].toreadonly()[8:], np.uint8)[4:].view(np.int32)
    del memory
    gc.collect()
    assert pool.memory(128 * KIB) is None
    del array
    assert pool.memory(128 * KIB) is not None


def test_piece_is_used_until_the_call_ends(tmp_path: Path) -> None:
    """A message that is gone keeps its piece while a call to the server names it."""
    pool = pool_of(tmp_path, 128 * KIB)
    memory = pool.memory(128 * KIB)
    assert memory is not None
    found = pool.find(memory)
    assert found is not None
    found[0].acquire()
    del memory
    assert pool.memory(128 * KIB) is None
    found[0].release()
    assert pool.memory(128 * KIB) is not None


def test_view_is_found_in_its_piece(tmp_path: Path) -> None:
    """A view is found by its address; other memory, and that of another pool, is not."""
    pool = pool_of(tmp_path)
    first, second = pool.memory(64 * KIB), pool.memory(64 * KIB)
    assert first is not None
    assert second is not None
    found = pool.find(second[128:])
    assert found is not None
    assert (64 * KIB, 64 * KIB + 128) == (found[0].start, found[1])
    assert pool.find(memoryview(bytes(100))) is None
    assert pool_of(tmp_path).find(first) is None


def test_alignment_is_learnt_from_the_message_before(tmp_path: Path) -> None:
    """A tensor behind a header of 117 bytes is not used as it is; in the next message it is."""
    pool = pool_of(tmp_path)
    first = pool.memory(64 * KIB + 117)
    assert first is not None
    assert pool.find(first[117:]) is None
    for _ in range(3):
        memory = pool.memory(64 * KIB + 117)
        assert memory is not None
        found = pool.find(memory[117:])
        assert found is not None
        assert 0 == found[1] % ALIGNMENT


def test_doubtful_piece_is_never_used_again(tmp_path: Path) -> None:
    """Bytes that a server may still read stay as they are, and are not handed over again."""
    pool = pool_of(tmp_path, MIB)
    memory = pool.memory(64 * KIB)
    assert memory is not None
    memory[:] = bytes([7]) * len(memory)
    found = pool.find(memory)
    assert found is not None
    piece = found[0]
    piece.acquire()
    piece.release(is_doubtful=True)
    assert pool.find(memory) is None
    del memory
    for _ in range(100):
        other = pool.memory(64 * KIB)
        assert other is not None
        other[:] = bytes(len(other))
        assert bytes([7]) * 64 * KIB == piece.region.view(piece).tobytes()


def test_region_is_replaced_at_a_quarter_of_doubt(tmp_path: Path) -> None:
    """It has no file any more, and counts until neither a server nor a message uses it."""
    pool = pool_of(tmp_path, MIB)
    (region,) = pool.regions
    region.servers += 1
    for _ in range(4):
        piece = pool.allocate(64 * KIB)
        assert piece is not None
        piece.acquire()
        piece.release(is_doubtful=True)
    kept = pool.memory(64 * KIB)
    assert kept is None
    assert region.is_retired
    assert 0 == len(pool.regions)
    assert [] == [*tmp_path.iterdir()]
    assert (False, 0) == (pool.needs_region, pool.region_bytes)
    region.servers -= 1
    pool.collect()
    assert (True, MIB) == (pool.needs_region, pool.region_bytes)


def test_pool_is_bounded(tmp_path: Path) -> None:
    """Regions have at most 32 MiB each and together at most what is configured."""
    pool = RegionPool(40 * MIB, str(tmp_path))
    assert 32 * MIB == pool.region_bytes
    pool.add(pool.create(pool.region_bytes))
    assert 8 * MIB == pool.region_bytes
    assert not pool.needs_region
    assert pool.memory(31 * MIB) is not None
    pool.add(pool.create(pool.region_bytes))
    assert 0 == pool.region_bytes
    assert pool.memory(33 * MIB) is None
    assert not pool.needs_region


def test_no_memory_in_the_folder_is_an_error(tmp_path: Path) -> None:
    """A region that the folder has no room for fails at once, not at a later write, and is gone."""
    with pytest.raises(OSError, match=r"space|large|argument"):
        Region(str(tmp_path), 1 << 60)
    assert [] == [*tmp_path.iterdir()]
    with pytest.raises(FileNotFoundError):
        RegionPool(MIB, str(tmp_path / "none")).create(MIB)


def test_a_small_folder_has_as_much_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's 64 MiB are halved, however often the pool is short."""
    free = [64 * MIB - 4 * KIB]
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free[0], f_frsize=1))
    pool = RegionPool(128 * MIB, str(tmp_path))
    region = pool.create(pool.region_bytes)
    assert 32 * MIB - 4 * KIB == region.size
    pool.add(region)
    free[0] -= region.size
    with pytest.raises(OSError, match="space"):
        pool.create(pool.region_bytes)


def test_a_group_may_open_the_files(tmp_path: Path) -> None:
    """They get the group, by number or by name, and no other right; an unknown one is an error."""
    number = os.getgid()
    for group in (str(number), grp.getgrgid(number).gr_name):
        region = RegionPool(MIB, str(tmp_path), group).create(MIB)
        found = (tmp_path / region.name).stat()
        assert (0o660, number) == (found.st_mode & 0o777, found.st_gid)
    before = len([*tmp_path.iterdir()])
    with pytest.raises(OSError, match="there is no group 'no such group'"):
        RegionPool(MIB, str(tmp_path), "no such group").create(MIB)
    assert before == len([*tmp_path.iterdir()])


def test_closed_pool_leaves_no_files(tmp_path: Path) -> None:
    """A message keeps its bytes; a region that was made meanwhile is removed, too."""
    pool = pool_of(tmp_path, MIB, 2 * MIB)
    late = pool.create(MIB)
    memory = pool.memory(MIB)
    assert memory is not None
    memory[:4] = b"data"
    pool.close()
    pool.close()
    pool.add(late)
    assert [] == [*tmp_path.iterdir()]
    assert b"data" == bytes(memory[:4])
    assert not pool.needs_region


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """Files without a lock go; those of a running process, and other files, stay."""
    pool = pool_of(tmp_path)
    (live,) = [path.name for path in tmp_path.iterdir()]
    (tmp_path / "tensor-gateway-0123").write_bytes(bytes(8))
    (tmp_path / "other").write_bytes(bytes(8))
    (tmp_path / "tensor-gateway-link").symlink_to("other")
    assert 1 == remove_leftovers(str(tmp_path))
    assert {live, "other", "tensor-gateway-link"} == {path.name for path in tmp_path.iterdir()}
    assert has_file(live, str(tmp_path))
    pool.close()
    assert 0 == remove_leftovers(str(tmp_path / "none"))


def test_lock_is_held_while_the_process_runs(tmp_path: Path) -> None:
    """Another opening of the file cannot lock it."""
    pool = pool_of(tmp_path)
    (path,) = tmp_path.iterdir()
    file = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(file)
    pool.close()


@pytest.mark.parametrize("seed", range(20))
def test_pieces_never_overlap(tmp_path: Path, seed: int) -> None:
    """Messages and calls that end in any order leave each byte with one owner, and none is lost."""
    draw = random.Random(seed)  # noqa: S311  # it must be repeatable
    pool = pool_of(tmp_path, 4 * MIB)
    (region,) = pool.regions
    held: list[tuple[memoryview, int]] = []
    for _ in range(400):
        if held and draw.random() < 0.5:
            memory, mark = held.pop(draw.randrange(len(held)))
            assert bytes([mark]) * len(memory) == memory
            del memory
            continue
        size, mark = draw.randrange(64 * KIB, 512 * KIB), draw.randrange(256)
        got = pool.memory(size)
        if got is not None:
            got[:] = bytes([mark]) * size
            held.append((got, mark))
            del got
    held.clear()
    pool.collect()
    assert region.is_idle
    assert pool.memory(4 * MIB) is not None
