"""Unix sockets to listen on: taken over from the dead, opened to whom they should be, and removed.

A socket's file outlives its server. One that nobody listens on is replaced; any other file is not.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

PREFIX = "unix:"
"""What the address of a unix socket begins with; its path follows."""

_PATH_BYTES = 107  # sockaddr_un, less the closing zero
_CONNECT_S = 1.0


class UnixSocket:
    """A listening socket's file.

    Args:
        path: Of the file; its folder must exist.
        mode: Its permissions: whoever may write may connect.
    """

    def __init__(self, path: str, mode: int = 0o660) -> None:
        self._path = path
        self._mode = mode
        self._file: tuple[int, int] | None = None

    def bind(self) -> socket.socket:
        """Return the socket, bound but not yet listening, so that nobody connects too early.

        Raises:
            OSError: The path is too long or in use, or its folder cannot be written.
        """
        if len(os.fsencode(self._path)) > _PATH_BYTES:
            raise self._error(errno.ENAMETOOLONG, f"longer than {_PATH_BYTES} bytes")
        self._remove_stale()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(self._path)
            Path(self._path).chmod(self._mode)
            self._file = self._identity()
        except OSError as error:
            sock.close()
            raise self._error(error.errno or errno.EIO, error.strerror or str(error)) from error
        return sock

    def remove(self) -> None:
        """Remove the file, unless another has taken its place; harmless the second time."""
        ours, self._file = self._file, None
        if ours is not None and self._identity() == ours:
            Path(self._path).unlink(missing_ok=True)

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = Path(self._path).lstat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _remove_stale(self) -> None:
        try:
            mode = Path(self._path).lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(error.errno or errno.EIO, error.strerror or str(error)) from error
        if not stat.S_ISSOCK(mode):
            raise self._error(errno.EEXIST, "there is a file that is no socket")
        if self._is_served():
            raise self._error(errno.EADDRINUSE, "a server listens on it already")
        Path(self._path).unlink(missing_ok=True)

    def _is_served(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_S)
            try:
                probe.connect(self._path)
            except (ConnectionRefusedError, FileNotFoundError):
                return False
            except OSError as error:  # busy, or not for us to ask: somebody's in any case
                raise self._error(error.errno or errno.EADDRINUSE, str(error)) from error
        return True

    def _error(self, number: int, reason: str) -> OSError:
        return OSError(number, f"cannot listen on {PREFIX}{self._path}: {reason}")
