"""Object stores by URL: where captures and events are uploaded, and captures are read from.

`file:///` needs nothing. The others need the extra `objects`, and the package of the store for it.
All methods block, so the event loop calls them on a thread.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from gateway.settings.private_files import make_directory, private_opener

SCHEMES: Final = ("file", "s3", "gs", "az")
"""Those of URLs of objects."""
_PACKAGES: Final = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
_PART_SUFFIX: Final = ".part"


class ObjectStoreError(Exception):
    """A store cannot be opened, read or written. The text says why."""


class ObjectStore(Protocol):
    """The objects below one URL. Names are relative to it, with "/" between their parts."""

    def put(self, name: str, body: bytes, /) -> None:
        """Write an object. Nobody sees a part of it. Raises ObjectStoreError."""

    def upload(self, path: Path, name: str, /) -> None:
        """Write an object with the content of a file. Raises ObjectStoreError."""

    def download(self, name: str, path: Path, /) -> None:
        """Write an object to a file. Raises ObjectStoreError."""

    def names(self) -> list[str]:
        """Return the names of all objects, sorted; none is no error. Raises ObjectStoreError."""

    def remove(self, name: str, /) -> None:
        """Remove an object; a missing one is no error. Raises ObjectStoreError."""


def is_object_url(text: str) -> bool:
    """Return whether a text is the URL of objects, and not a path."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in SCHEMES


def check_object_url(url: str) -> None:
    """Check the form of a URL of objects.

    Raises:
        ValueError: It has another scheme, a host where there is none, or no bucket.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        expected = ", ".join(f"{each}://" for each in SCHEMES)
        raise ValueError(f"{url!r} has no scheme of objects; expected one of {expected}")
    if parts.scheme == "file":
        if parts.netloc or len(parts.path) < len("/x"):
            raise ValueError(f"{url!r} names no folder; expected file:///FOLDER")
    elif not parts.netloc:
        raise ValueError(f"{url!r} names no bucket; expected {parts.scheme}://BUCKET/PREFIX")


def object_store(url: str) -> ObjectStore:
    """Return the store of a URL: `file:///FOLDER`, `s3://BUCKET/PREFIX`, `gs://...` or `az://...`.

    Raises:
        ValueError: The URL is malformed.
        ObjectStoreError: A package is missing, or the store refuses.
    """
    check_object_url(url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FolderStore(Path(unquote(parts.path)))
    return FsspecStore(_file_system(parts.scheme), f"{parts.netloc}{parts.path}".strip("/"))


def _file_system(scheme: str) -> Any:
    try:
        import fsspec  # noqa: PLC0415  # an extra
    except ImportError:
        raise ObjectStoreError(
            f"objects of {scheme}:// need the package fsspec: it is not installed; install "
            f"'tensor-gateway[objects]' and {_PACKAGES[scheme]}"
        ) from None
    try:
        return fsspec.filesystem(scheme)
    except ImportError as error:
        raise ObjectStoreError(
            f"objects of {scheme}:// need the package {_PACKAGES[scheme]}: {error}; install it"
        ) from error
    except Exception as error:  # each store has its own
        raise ObjectStoreError(f"{scheme}:// cannot be opened: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each store has its own
        raise ObjectStoreError(f"{what}: {_reason(error)}") from error


class FolderStore:
    """The objects of `file:///`: files of a folder, which only the user of the gateway can read.

    Args:
        folder: It is created with the first object.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, body: bytes, /) -> None:
        """Write an object. Nobody sees a part of it. Raises ObjectStoreError."""
        with self._new(name) as part, open(part, "wb", opener=private_opener) as file:
            file.write(body)

    def upload(self, path: Path, name: str, /) -> None:
        """Write an object with the content of a file. Raises ObjectStoreError."""
        with (
            self._new(name) as part,
            path.open("rb") as source,
            open(part, "wb", opener=private_opener) as file,
        ):
            shutil.copyfileobj(source, file)

    @contextmanager
    def _new(self, name: str) -> Iterator[Path]:
        """Yield the path to write to; it gets its name afterwards."""
        with _translated(f"cannot write {name}"):
            path = self._path(name)
            make_directory(path.parent)
            part = path.with_name(f"{path.name}{_PART_SUFFIX}")
            try:
                yield part
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)

    def download(self, name: str, path: Path, /) -> None:
        """Write an object to a file. Raises ObjectStoreError."""
        with _translated(f"cannot read {name}"):
            shutil.copyfile(self._path(name), path)

    def names(self) -> list[str]:
        """Return the names of all objects, sorted; none is no error. Raises ObjectStoreError."""
        with _translated(f"cannot list {self._folder}"):
            found = (each for each in self._folder.rglob("*") if each.is_file())
            names = sorted(each.relative_to(self._folder).as_posix() for each in found)
            return [each for each in names if not each.endswith(_PART_SUFFIX)]

    def remove(self, name: str, /) -> None:
        """Remove an object; a missing one is no error. Raises ObjectStoreError."""
        with _translated(f"cannot remove {name}"):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        path = self._folder / name
        if ".." in path.parts or path == self._folder:
            raise ValueError(f"{name!r} is no name of an object")
        return path


class FsspecStore:
    """The objects below a prefix of a file system of fsspec.

    Args:
        files: The file system; its methods may be called on any thread.
        root: Bucket and prefix, without a "/" at either end.
    """

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root

    def put(self, name: str, body: bytes, /) -> None:
        """Write an object. Nobody sees a part of it. Raises ObjectStoreError."""
        with _translated(f"cannot write {name}"):
            self._files.pipe_file(self._path(name), body)

    def upload(self, path: Path, name: str, /) -> None:
        """Write an object with the content of a file. Raises ObjectStoreError."""
        with _translated(f"cannot write {name}"):
            self._files.put_file(str(path), self._path(name))

    def download(self, name: str, path: Path, /) -> None:
        """Write an object to a file. Raises ObjectStoreError."""
        with _translated(f"cannot read {name}"):
            self._files.get_file(self._path(name), str(path))

    def names(self) -> list[str]:
        """Return the names of all objects, sorted; none is no error. Raises ObjectStoreError."""
        with _translated(f"cannot list {self._root}"):
            self._files.invalidate_cache()  # other processes write, too
            found = [str(each).strip("/") for each in self._files.find(self._root)]
            start = f"{self._root}/"
            return sorted(each.removeprefix(start) for each in found if each.startswith(start))

    def remove(self, name: str, /) -> None:
        """Remove an object; a missing one is no error. Raises ObjectStoreError."""
        with _translated(f"cannot remove {name}"):
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
