"""SharedResponses: exchanges whose responses web pages of other origins may read (CORS)."""

from typing import Any, Final

from gateway.transports.http.cors import is_preflight
from gateway.transports.http.exchange import Exchange
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_head import Version
from gateway.wire.http import HttpRequest, HttpResponse

_NOT_FOUND: Final = 404


class SharedResponses(Exchange):
    """What an exchange does for web pages of other origins, on HTTP/1."""

    __slots__ = ()

    def _try_immediate(self) -> HttpRequest | None:
        wire = super()._try_immediate()
        head, rules = self._head, self._listener.cors
        if head is not None and rules is not None and is_preflight(head.method, head.headers):
            self._handle = rules.preflight
        return wire

    async def _send_error(self, fault: HttpError) -> None:
        """Send a fault, or the response to a preflight for a path that nothing serves.

        A page may only then read the error of its request.
        """
        head, rules = self._head, self._listener.cors
        if (
            fault.status == _NOT_FOUND
            and head is not None
            and rules is not None
            and is_preflight(head.method, head.headers)
        ):
            wire = HttpRequest(head.method, head.path, head.query, head.headers)
            await self._send(await rules.preflight(wire))
        else:
            await super()._send_error(fault)

    def write_response(
        self,
        transport: Any,
        response: HttpResponse,
        keep: bool,
        version: Version,
        varies: bool = False,
        head_only: bool = False,
    ) -> None:
        """Write a complete response."""
        super().write_response(transport, self._shared(response), keep, version, varies, head_only)

    def write_stream_head(
        self, transport: Any, response: HttpResponse, keep: bool, version: Version
    ) -> None:
        """Write the head of a streamed response."""
        super().write_stream_head(transport, self._shared(response), keep=keep, version=version)

    def _shared(self, response: HttpResponse) -> HttpResponse:
        rules, head = self._listener.cors, self._head
        if rules is None:
            return response
        return rules.shared(response, None if head is None else head.headers.get("origin"))
