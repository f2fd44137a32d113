"""What only this machine knows of a configuration: files, folders, sockets, callables, addresses.

`check` judges the file alone, wherever it is. The start, a reload and `gateway validate --here` ask
for the rest here, so that none of them refuses what another one accepts. No model is loaded, and
nothing is written.

A key that names something outside of the file has a type that says so, as `settings.fields.Folder`.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from gateway.admin.tokens import token_fault
from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.app.build.models import model_loader_of, model_spec
from gateway.backends.hosted import versions_of
from gateway.config.load import LoadedConfig
from gateway.config.tls import TlsConfig, client_files, server_files
from gateway.config.yaml_tree import Finding, KeyPath, Problem
from gateway.registry import backend, extensions, load_dotted
from gateway.settings.fields import Outside
from gateway.settings.model import Model
from gateway.settings.units import Address, StreamAddress, is_url

_SERVERS: Final = frozenset({"listeners", "admin"})
"""The sections whose TLS is that of a server."""

# Another gateway, which this one replaces, may listen there, or a service manager.
_LATER: Final = frozenset({errno.EADDRINUSE, errno.EAFNOSUPPORT})


def check_here(loaded: LoadedConfig) -> list[Problem]:
    """Return what a start on this machine, by this user, would refuse.

    Args:
        loaded: A configuration without errors. Its callables are imported.
    """
    findings = [*_files(loaded), *_callables(loaded), *_models(loaded), *_addresses(loaded)]
    return _problems(loaded, findings)


def require_files(loaded: LoadedConfig) -> None:
    """Check the files, folders and sockets of a configuration before it is put in force.

    Callables, models and addresses are left to the processes that use them.

    Raises:
        StartError: Its text has a line for each that cannot be used.
    """
    problems = _problems(loaded, list(_files(loaded)))
    if problems:
        raise StartError("\n".join(f"{loaded.source}:{problem}" for problem in problems))


def outside(section: Model, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yield what a section of the configuration names outside of it: path, kind and value.

    The kind is an `Outside` with a text, or the class of an address or of TLS, with its object.
    """
    for name, field in type(section).model_fields.items():
        kinds = (field.annotation, *field.metadata)
        yield from _named(getattr(section, name), kinds, (*at, name))


def _named(value: Any, kinds: tuple[Any, ...], at: KeyPath) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yield the same of a value, whose type and its annotations are *kinds*."""
    annotation = kinds[0]
    mark = next((each for each in kinds if isinstance(each, Outside)), None)
    if value is None:
        return
    if mark is not None:
        yield at, mark, value
    elif isinstance(value, TlsConfig | Address | StreamAddress):
        yield at, type(value), value
    elif isinstance(value, Model):
        yield from outside(value, at)
    elif get_origin(annotation) is Annotated:
        yield from _named(value, get_args(annotation), at)
    elif get_origin(annotation) in {Union, UnionType}:
        for each in get_args(annotation):
            yield from _named(value, (each,), at)
    elif get_args(annotation) and isinstance(value, Mapping | tuple):
        each = get_args(annotation)[-1 if isinstance(value, Mapping) else 0]
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, one in pairs:
            yield from _named(one, (each,), (*at, key))


def _outside(loaded: LoadedConfig, *kinds: object) -> Iterator[tuple[KeyPath, Any]]:
    for at, kind, value in outside(loaded.config):
        if kind in kinds:
            yield at, value


def _problems(loaded: LoadedConfig, findings: list[Finding]) -> list[Problem]:
    return [loaded.problem(path, message) for path, message in findings]


def _files(loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield the files and folders that cannot be used, and the sockets that cannot be made."""
    folder = loaded.directory
    for at, name in _outside(loaded, Outside.READ):
        if not is_url(name):
            yield from _raised(at, name, _check_content, at, folder / name)
    for at, name in _outside(loaded, Outside.WRITTEN):
        yield from _raised(at, name, _check_appended, folder / name)
    for at, name in _outside(loaded, Outside.FOLDER):
        yield from _raised(at, name, _check_folder, folder / name)
    for at, address in _outside(loaded, StreamAddress):
        if address.tcp is None:
            yield from _raised(at, address.path, _check_writable, Path(address.path).parent)
    for at, tls in _outside(loaded, TlsConfig):
        names = [name for _, name in tls.files()]
        if all(_is_readable(folder / name) for name in names):
            read = server_files if at[0] in _SERVERS else client_files
            yield from _raised(at, "", read, "server", tls, folder)
        else:
            for path, name in tls.files():
                yield from _raised((*at, *path), name, _check_read, folder / name)


def _check_content(at: KeyPath, path: Path) -> None:
    """Check a file that is read at the start, by what reads it."""
    _check_read(path)
    for extension in extensions().values():
        extension.check_file(at, path)
    if at[0] == "admin" and (fault := token_fault(path)):
        raise ValueError(fault)


def _check_read(path: Path) -> None:
    """Check that a file, or a folder, can be read. Raises OSError."""
    mode = path.stat().st_mode
    if S_ISDIR(mode):
        next(path.iterdir(), None)
    elif S_ISREG(mode):
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _is_readable(path: Path) -> bool:
    try:
        _check_read(path)
    except OSError:
        return False
    return True


def _check_appended(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists():
        _check_access(path, os.W_OK)
    else:
        _check_writable(path.parent)


def _check_folder(path: Path) -> None:
    """Check a folder that is made if it does not exist, with those above it."""
    _check_writable(next(each for each in (path, *path.parents) if each.exists()))


def _check_writable(folder: Path) -> None:
    if not S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder")
    _check_access(folder, os.W_OK | os.X_OK)


def _check_access(path: Path, mode: int) -> None:
    if not os.access(path, mode):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        raise PermissionError(
            0, "the file system is read-only" if read_only else f"{path}: {_DENIED}"
        )


_DENIED: Final = os.strerror(errno.EACCES)


def _callables(loaded: LoadedConfig) -> Iterator[Finding]:
    for at, name in _outside(loaded, Outside.CALLABLE):
        yield from _raised(at, "", load_dotted, name)


def _models(loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield the models whose files or callables are missing; those that calls load are left out."""
    if model_loader_of(loaded) is not None:
        return
    for name, model in loaded.config.models.items():
        at = ("models", name)
        if model.backend is None or (
            model.path is not None and not _is_readable(loaded.directory / model.path)
        ):
            continue  # `_files` has it
        yield from _raised(at, "", lambda: _check_model(loaded, name))  # noqa: B023  # called here


def _check_model(loaded: LoadedConfig, name: str) -> None:
    model = loaded.config.models[name]
    found = backend(str(model.backend))
    versions_of(found, model_spec(name, model, loaded.directory)).check_here()


def _addresses(loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield the addresses that this machine does not have, or that this user may not use."""
    for at, address in _outside(loaded, Address, StreamAddress):
        tcp = address.tcp if isinstance(address, StreamAddress) else address
        if tcp is not None:
            yield from _raised(at, str(tcp), _check_address, tcp)


def _check_address(address: Address) -> None:
    """Bind a socket to an address for a moment, without listening."""
    try:
        family, kind, number, _, where = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with closing(socket.socket(family, kind, number)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(where)
    except OSError as error:
        if error.errno not in _LATER:
            raise


def _raised(
    at: KeyPath, name: str, check: Callable[..., object], *arguments: Any
) -> Iterator[Finding]:
    """Yield what *check* raises as a finding about *at*, with the name that the file has."""
    try:
        check(*arguments)
    except REASONS as error:
        reason = error.strerror if isinstance(error, OSError) and name else reason_of(error)
        yield at, f"{name}: {reason}" if name else str(reason)
    except Exception as error:  # noqa: BLE001  # of a module that is imported
        yield at, f"{name}: {type(error).__name__}: {error}".removeprefix(": ")
