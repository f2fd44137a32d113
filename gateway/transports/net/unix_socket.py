"""UnixSocket: binds a listening unix socket, with permissions, and removes its file.

The file of a socket outlives its server.  A file without a listening server is replaced; any other
file is not.
"""

import errno
import os
import socket
import stat
from pathlib import Path

PREFIX = "unix:"
"""The prefix of the address of a unix socket; its path follows."""

_PATH_BYTES = 107  # sockaddr_un, less the closing zero
_CONNECT_S = 1.0
_BACKLOG = 1024
_NEXT = ".next"


class UnixSocket:
    """The file of a listening socket.

    Args:
        path: The path of the file; its folder must exist.
        mode: Its permissions: processes that may write to it may connect.
    """

    def __init__(self, path: str, mode: int = 0o660) -> None:
        self._path = path
        self._mode = mode
        self._file: tuple[int, int] | None = None

    def bind(self, *, replaces: bool = False) -> socket.socket:
        """Return the socket, bound but not listening, so that no client connects too early.

        Args:
            replaces: Take the place of a server that listens there. It keeps its connections. The
                socket listens then, so that no client finds the path without a server.

        Raises:
            OSError: The path is too long or in use, or its folder cannot be written.
        """
        most = _PATH_BYTES - len(_NEXT) * replaces
        if len(os.fsencode(self._path)) > most:
            raise self._error(errno.ENAMETOOLONG, f"longer than {most} bytes")
        is_served = self._remove_stale(replaces=replaces)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = Path(f"{self._path}{_NEXT}" if is_served else self._path)
        try:
            if is_served:
                path.unlink(missing_ok=True)
            sock.bind(str(path))
            path.chmod(self._mode)
            if is_served:
                sock.listen(_BACKLOG)
                path.rename(self._path)
            self._file = self._identity()
        except OSError as error:
            sock.close()
            raise self._error(error.errno or errno.EIO, error.strerror or str(error)) from error
        return sock

    def remove(self) -> None:
        """Remove the file, unless another one has replaced it. A second call does nothing."""
        ours, self._file = self._file, None
        if ours is not None and self._identity() == ours:
            Path(self._path).unlink(missing_ok=True)

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = Path(self._path).lstat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _remove_stale(self, *, replaces: bool) -> bool:
        """Remove a socket without a server; return whether one has a server to replace."""
        try:
            mode = Path(self._path).lstat().st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._error(error.errno or errno.EIO, error.strerror or str(error)) from error
        if not stat.S_ISSOCK(mode):
            raise self._error(errno.EEXIST, "the path is a file and not a socket")
        if self._is_served():
            if replaces:
                return True
            raise self._error(errno.EADDRINUSE, "a server listens on it already")
        Path(self._path).unlink(missing_ok=True)
        return False

    def _is_served(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_S)
            try:
                probe.connect(self._path)
            except (ConnectionRefusedError, FileNotFoundError):
                return False
            except OSError as error:  # busy or not permitted: another server has it
                raise self._error(error.errno or errno.EADDRINUSE, str(error)) from error
        return True

    def _error(self, number: int, reason: str) -> OSError:
        return OSError(number, f"cannot listen on {PREFIX}{self._path}: {reason}")
