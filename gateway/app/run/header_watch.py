"""HeaderWatch: follows the files of headers of upstreams."""

from collections.abc import Awaitable, Callable

import structlog

from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.concurrency.polling import Polling

log = structlog.get_logger(__name__)


class HeaderWatch(Polling):
    """Has other values of headers used within 2 s after their files have changed.

    Args:
        renew: Reads the files, and uses what has changed.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        super().__init__(self._read)
        self._renew = renew
        self._reason = ""

    async def _read(self) -> None:
        """Renew the values; log each reason why that fails once."""
        reason = ""
        try:
            await self._renew()
        except (StartError, *REASONS) as error:
            reason = str(error) if isinstance(error, StartError) else reason_of(error)
        if reason not in {"", self._reason}:
            log.error("headers not renewed", reason=reason)
        self._reason = reason
