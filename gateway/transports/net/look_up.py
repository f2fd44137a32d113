"""The addresses of names, as the system finds them.

`getaddrinfo` cannot be cancelled and may wait for a name server for a minute. So each name has a
thread of its own while it is looked up, one at a time, and all who ask share the result. The
threads of the event loop and the end of the process do not wait for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from time import monotonic
from typing import Final

import structlog

from gateway.concurrency.own_thread import in_own_thread

log = structlog.get_logger(__name__)

# Then everyone who asks for the name gets an error, at once, until the look-up ends.
_WAIT_S: Final = 3.0
# How long a result is kept that came when nobody waited any more.
_KEEP_S: Final = 60.0


async def look_up(host: str) -> list[str]:
    """Return the addresses of a name, in the system's order; an address is its own.

    Raises:
        OSError: The name is unknown, or the name server does not reply.
    """
    return [host] if is_address(host) else await _running(host).addresses()


def require_known(host: str, timeout_s: float) -> None:
    """Wait in a thread until a name is looked up.

    Raises:
        OSError: The name is unknown, or the name server does not reply within *timeout_s*.
    """
    if not is_address(host):
        _running(host).wait(timeout_s)


def is_looked_up(host: str) -> bool:
    """Return whether a look-up of the name has begun and not ended."""
    found = _LOOK_UPS.get(host)
    return found is not None and not found.has_ended()


def is_address(host: str) -> bool:
    """Return whether *host* is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _running(host: str) -> _LookUp:
    found = _LOOK_UPS.get(host)
    if found is None or found.is_over():
        was_silent = found is not None and found.is_silent
        found = _LOOK_UPS[host] = _LookUp(host, was_silent=was_silent)
    return found


class _LookUp:
    """One look-up of a name, for all who wait for it.

    Attributes:
        is_silent: A warning has said that the name server does not reply.
    """

    def __init__(self, host: str, *, was_silent: bool) -> None:
        self._host = host
        self._began = monotonic()
        self._is_used = False
        self.is_silent = was_silent
        try:
            self._result = in_own_thread(_ask_system, host)
        except RuntimeError as error:
            raise OSError(f"{host} cannot be looked up: {error}") from error

    def has_ended(self) -> bool:
        """Return whether there is a result."""
        return self._result.done()

    def is_over(self) -> bool:
        """Return whether somebody has got the result, or it is of no use."""
        if not self._result.done():
            return False
        is_old = monotonic() > self._began + _KEEP_S
        return self._is_used or is_old or isinstance(self._result.result(), OSError)

    async def addresses(self) -> list[str]:
        """Wait for the addresses. Raises OSError."""
        if not self._result.done():
            try:
                async with asyncio.timeout(max(0.0, self._began + _WAIT_S - monotonic())):
                    await asyncio.wrap_future(self._result)
            except TimeoutError:
                raise self._silent(_WAIT_S) from None
        return self._use()

    def wait(self, timeout_s: float) -> None:
        """Block until there are addresses. Raises OSError."""
        try:
            self._result.result(timeout_s)
        except TimeoutError:
            raise self._silent(timeout_s) from None
        self._use()

    def _use(self) -> list[str]:
        found = self._result.result()
        if isinstance(found, OSError):
            raise type(found)(*found.args)  # one for each caller: its traceback holds frames
        self._is_used = True
        if self.is_silent:
            self.is_silent = False
            log.info("name server replies again", name=self._host)
        return found

    def _silent(self, waited_s: float) -> OSError:
        if not self.is_silent:
            self.is_silent = True
            log.warning("name server does not reply", name=self._host, waited_s=waited_s)
        return OSError(
            f"the name server has not replied about {self._host!r} within {waited_s:g} s"
        )


def _ask_system(host: str) -> list[str] | OSError:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.with_traceback(None)
    except UnicodeError as error:  # a part of a name is too long, or empty
        return OSError(f"{host!r} is not a valid name: {error}")
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


# By name, for all event loops of the process.
_LOOK_UPS: Final[dict[str, _LookUp]] = {}
