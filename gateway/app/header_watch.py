"""HeaderWatch: follows the files of headers of upstreams."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gateway.app.errors import REASONS, StartError, reason_of
from gateway.concurrency.background import start_background

log = structlog.get_logger(__name__)

_PERIOD_S: Final = 1.0


class HeaderWatch:
    """Has other values of headers used within 2 s after their files have changed.

    Args:
        renew: Reads the files, and uses what has changed.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self._renew = renew
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read the files."""
        self._task = start_background(self._run(), "watch of headers")

    def stop(self) -> None:
        """Read the files no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        reason = ""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self._renew()
                reason = ""
            except (StartError, *REASONS) as error:
                found = str(error) if isinstance(error, StartError) else reason_of(error)
                if found != reason:
                    reason = found
                    log.error("headers not renewed", reason=reason)  # noqa: TRY400
