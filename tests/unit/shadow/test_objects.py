"""Object stores: folders without a package, and file systems of fsspec."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gateway.shadow.objects import (
    FsspecStore,
    ObjectStore,
    ObjectStoreError,
    check_object_url,
    is_object_url,
    object_store,
)


@pytest.fixture(params=["folder", "fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return object_store(f"file://{tmp_path}/a%20b/objects")
    MemoryFileSystem.store.clear()
    return FsspecStore(MemoryFileSystem(), "bucket/prefix")


def test_objects_come_back_as_they_were_written(store: ObjectStore, tmp_path: Path) -> None:
    """Objects are put, uploaded, listed below the URL, downloaded and removed."""
    assert store.names() == []
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"two")
    store.put("a/1.bin", b"one")
    store.upload(source, "a/2.bin")
    assert store.names() == ["a/1.bin", "a/2.bin"]
    store.download("a/2.bin", target)
    assert target.read_bytes() == b"two"
    store.put("a/1.bin", b"other")
    store.download("a/1.bin", target)
    assert target.read_bytes() == b"other"
    store.remove("a/1.bin")
    store.remove("a/1.bin")
    assert store.names() == ["a/2.bin"]


def test_a_missing_object_is_an_error_with_its_name(store: ObjectStore, tmp_path: Path) -> None:
    """A download of what is not there names the object."""
    with pytest.raises(ObjectStoreError, match=r"cannot read none\.bin"):
        store.download("none.bin", tmp_path / "target")


def test_folders_are_private_and_left_without_parts(tmp_path: Path) -> None:
    """Objects of a folder are for its user only, and no name leads out of the folder."""
    store = object_store(f"file://{tmp_path}/objects")
    store.put("one", b"1")
    assert (tmp_path / "objects" / "one").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ObjectStoreError, match="no name of an object"):
        store.put("../other", b"1")
    (tmp_path / "objects" / "two").mkdir()
    with pytest.raises(ObjectStoreError, match="cannot write two"):
        store.put("two", b"2")
    assert sorted(each.name for each in (tmp_path / "objects").iterdir()) == ["one", "two"]


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://host/x", "no scheme of objects"),
        ("file://host/x", "expected file:///FOLDER"),
        ("file:///", "expected file:///FOLDER"),
        ("s3:///x", "expected s3://BUCKET/PREFIX"),
    ],
)
def test_malformed_urls_are_refused(url: str, text: str) -> None:
    """A URL that names no folder or bucket is refused with the expected form."""
    with pytest.raises(ValueError, match=text):
        check_object_url(url)


def test_a_path_is_no_url() -> None:
    """Paths, also those with a colon, are no URLs of objects."""
    assert is_object_url("s3://bucket/x")
    assert not is_object_url("captures/s3:/x")
    assert not is_object_url("http://host/x")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fsspec, the error says what to install."""
    real = builtins.__import__

    def without_fsspec(name: str, *rest: Any, **named: Any) -> Any:
        if name == "fsspec":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_fsspec)
    with pytest.raises(ObjectStoreError, match="'tensor-gateway\\[objects\\]' and s3fs"):
        object_store("s3://bucket/prefix")
