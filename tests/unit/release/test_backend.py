"""The build backend: archives have the same bytes whatever the umask, the clock and the owner."""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.unit.release.loading import load

backend = load("backend")
EPOCH = 1_700_000_000
FILES = {
    "gateway/_accelerated.cpython-311-x86_64-linux-gnu.so": b"\x7fELF",
    "gateway/__init__.py": b"'''Text.'''\n",
    "t.dist-info/RECORD": b"",
    "t.dist-info/METADATA": b"Name: t\n",
}


def wheel(path: Path, names: list[str], mode: int, year: int) -> bytes:
    with zipfile.ZipFile(path, "w") as written:
        for name in names:
            entry = zipfile.ZipInfo(name, (year, 1, 2, 3, 4, 6))
            entry.external_attr = mode << 16
            written.writestr(entry, FILES[name])
    backend.normalize_wheel(path, EPOCH)
    return path.read_bytes()


def test_wheels_of_equal_files_are_equal(tmp_path: Path) -> None:
    """Order, modes and times of the first archive do not matter; RECORD comes last."""
    first = wheel(tmp_path / "1.whl", list(FILES), 0o100644, 2020)
    second = wheel(tmp_path / "2.whl", sorted(FILES), 0o100600, 2031)
    assert first == second
    with zipfile.ZipFile(BytesIO(first)) as found:
        entries = found.infolist()
    assert FILES == {each.filename: FILES[each.filename] for each in entries}
    assert "t.dist-info/RECORD" == entries[-1].filename
    assert {(2023, 11, 14, 22, 13, 20)} == {each.date_time for each in entries}
    modes = {each.filename: each.external_attr >> 16 for each in entries}
    assert 0o100755 == modes[next(iter(FILES))]
    assert 0o100644 == modes["gateway/__init__.py"]


def sdist(path: Path, mode: int, owner: int, mtime: int) -> bytes:
    with tarfile.open(path, "w:gz") as written:
        for name in ("t-1/b.sh", "t-1/a.py"):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uid, entry.uname = 2, mtime, owner, str(owner)
            entry.mode = mode | (0o100 if name.endswith(".sh") else 0)
            written.addfile(entry, BytesIO(b"ab"))
    backend._normalize_sdist(path, EPOCH)
    return path.read_bytes()


def test_source_archives_of_equal_files_are_equal(tmp_path: Path) -> None:
    """Owners, the umask and times do not matter; what can be executed stays so."""
    first = sdist(tmp_path / "1.tar.gz", 0o644, 0, 1)
    assert first == sdist(tmp_path / "2.tar.gz", 0o600, 1000, 2_000_000_000)
    with tarfile.open(fileobj=BytesIO(gzip.decompress(first))) as found:
        entries = [(each.name, each.mode, each.mtime, each.uid) for each in found]
    assert [("t-1/a.py", 0o644, EPOCH, 0), ("t-1/b.sh", 0o755, EPOCH, 0)] == entries


def test_the_time_is_that_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable decides, then the archive in which the sources came, then a constant."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "17")
    assert 17 == backend.source_epoch()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert 315_532_800 == backend.source_epoch()
    Path("PKG-INFO").touch()
    os.utime("PKG-INFO", (EPOCH, EPOCH))
    assert EPOCH == backend.source_epoch()


def test_no_git_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout on a machine without git has the constant time, and no commit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path(".git").mkdir()
    assert 315_532_800 == backend.source_epoch()
    assert "" == backend.git("rev-parse", "HEAD")


def test_stale_output_of_an_earlier_build_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that was deleted since then is not in the next wheel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    for name in ("build/lib/x.py", "build/bdist.linux/y", "tensor_gateway.egg-info/SOURCES.txt"):
        path = Path(name)
        path.parent.mkdir(parents=True)
        path.touch()
    assert EPOCH == backend._prepare()
    assert [] == [each for each in Path().rglob("*") if each.is_file()]
    assert str(EPOCH) == os.environ["SOURCE_DATE_EPOCH"]
    assert "setuptools" in sys.modules
