"""Requests to paths of no protocol, which go to an HTTP upstream: lines, counts and bodies."""

from collections.abc import AsyncGenerator, Callable
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from time import monotonic
from typing import Any, Final

import structlog

from gateway.api.tap import Tap
from gateway.ir.calls import OpaqueCall
from gateway.ir.context import REPEATED_CREDENTIAL, REQUEST_ID, Client, has_two_credentials
from gateway.ir.errors import Cancelled, Forbidden, GatewayError, InvalidRequest, TooLarge
from gateway.ir.identity import ANONYMOUS
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.texts import field_text
from gateway.ir.unread import unread_call
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.faults import FAULTS
from gateway.telemetry.log.call_log import OK, PASSTHROUGH, CallRecord
from gateway.telemetry.upstream_metrics import ByteCounter
from gateway.transports.http.faults import text_response
from gateway.transports.http.passthrough import (
    ABSENT,
    Passthrough,
    PassthroughClient,
    PassthroughRefusal,
    PassthroughRules,
)
from gateway.wire.errors import HTTP_STATUS, error_class_of_http
from gateway.wire.heads.request_id import attach_http_request_id, http_request_id, new_request_ids
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json.values import read_value

log = structlog.get_logger(__name__)

# KServe needs 0.2 ms for each row of a V1 request, and serves no other request meanwhile.
MAX_CONTAINERS: Final = 2_000
# Parts of a stream that a tap gets.
_MAX_PARTS: Final = 1024
_SPACE: Final = b" \t\r\n"
_FIRST_ERROR: Final = 400

_Send = Callable[[HttpRequest], AsyncGenerator[HttpResponse, None]]

NAME: Final = "passthrough"
"""The protocol of such a request in the log and the metrics."""


class ObservedPassthrough(Passthrough):
    """A passthrough that logs and counts each request, as the layer `Observe` does with calls.

    Args:
        client: Sends the requests to the upstream.
        rules: Which requests are passed on, and which of their headers.
        upstream: Its name.
        report: Counts and logs a request, with its error if it failed.
        tap: Receives the requests, also refused ones; None for no tap.
        reject: Counts and logs a request that was not read completely.
        count_bytes: Counts the bytes of requests and responses.
        check: Raises Forbidden if a client may not use the passthrough.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first three
        self,
        client: PassthroughClient,
        rules: PassthroughRules,
        upstream: str,
        *,
        report: Callable[..., None],
        reject: Callable[[str, GatewayError], object],
        count_bytes: ByteCounter,
        check: Callable[[Client], None] = lambda _client: None,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(client, rules)
        self._upstream = upstream
        self._report = report
        self._reject = reject
        self._bytes = count_bytes
        self._request_ids = new_request_ids()
        self._check = check
        self._tap = tap

    def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Forward *wire* and yield the response, with the id of the request."""
        return self._forward(wire, super().__call__)

    def page(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Do the same, but count no request for a page that the server does not have."""
        return self._forward(wire, super().page, ABSENT)

    async def offer(
        self, wire: HttpRequest, /
    ) -> HttpResponse | AsyncGenerator[HttpResponse, None] | None:
        """Return the server's response; None if it has none, or the client may not ask for it."""
        try:
            self._check(wire.client)
        except Forbidden:
            return None
        return await super().offer(wire)

    async def _forward(
        self, wire: HttpRequest, send: _Send, unreported: AbstractSet[int] = frozenset()
    ) -> AsyncGenerator[HttpResponse, None]:
        request_id, started = http_request_id(wire) or next(self._request_ids), monotonic()
        self._bytes.count(wire)
        status, error, is_refused = 0, None, False
        answered: list[HttpResponse] = []
        try:
            self._check(wire.client)
            sent = _with_own(wire, request_id, self.client)
            async with aclosing(send(sent)) as answers:
                async for answer in answers:
                    self._bytes.count(response=answer)
                    is_refused = is_refused or isinstance(answer, PassthroughRefusal)
                    if self._tap is not None and len(answered) < _MAX_PARTS:
                        answered.append(answer)
                    if status or answer.headers.get(REQUEST_ID) is not None:
                        status = status or answer.status
                        yield answer
                    else:
                        status = answer.status
                        yield attach_http_request_id(answer, request_id)
            if status >= _FIRST_ERROR:
                text = f"{wire.method} {wire.path}: status {status}"
                error = error_class_of_http(status)(text)
        except (Forbidden, InvalidRequest) as denied:
            error, is_refused = denied, True
            response = text_response(HTTP_STATUS[denied.code], denied.message)
            answered.append(PassthroughRefusal(response.status, response.headers, response.body))
            yield attach_http_request_id(response, request_id)
        except GatewayError as failure:
            error = failure
            raise
        except BaseException:
            error = Cancelled("the client left")
            raise
        finally:
            if status not in unreported:
                call = unread_call(
                    NAME, wire, wire.client, request_id, metadata=wire.headers.lowered
                )
                record = self._record(call, started, error)
                self._report(call, record, error, is_refused=is_refused)
                _record_in(self._tap, call, record, error, answered)

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Return *error* as a response, for a request that was not read completely."""
        response = super().reject(error)
        error.wire_status = response.status
        self._reject(NAME, error)
        return attach_http_request_id(response, error.request_id)

    def _record(self, call: OpaqueCall, started: float, error: GatewayError | None) -> CallRecord:
        context, code = call.context, OK if error is None else str(error.code.value)
        path, ended = CallPath(target=self._upstream), monotonic()
        return CallRecord(PASSTHROUGH, "", "", context, path, code, None, ended - started, ended)


def _record_in(
    tap: Tap | None,
    call: OpaqueCall,
    record: CallRecord,
    error: GatewayError | None,
    answered: list[HttpResponse],
) -> None:
    """Pass a request and its response to a tap, if any, also where no server got it."""
    if tap is None:
        return
    try:
        if error is not None and answered and isinstance(answered[-1], PassthroughRefusal):
            error.client, error.request_id = call.context.client, call.context.request_id
            tap.rejected(NAME, call.message.wire, error, answered[-1])
            return
        exchange = tap.begin(call)
        if exchange is None:
            return
        exchange.started, exchange.took_s = record.ended - record.seconds, record.seconds
        exchange.path.target, exchange.responses = record.path.target, list(answered)
        if error is not None:
            exchange.fail(error)
            exchange.is_refused = False
        tap.end(exchange)
    except FAULTS:  # the client's response must not fail because of a tap
        log.exception("call not recorded")


def _with_own(wire: HttpRequest, request_id: str, client: PassthroughClient) -> HttpRequest:
    """Return *wire* with the id, which the upstream may return and log, and the client's name.

    Raises:
        InvalidRequest: It has several credentials for the upstream.
    """
    identity = wire.client.identity
    own = [(REQUEST_ID, request_id)]
    if client.client_header:
        own.append((client.client_header, field_text(identity.name)))
    names = {name for name, _ in own}
    if identity is not ANONYMOUS and not client.gets_authorization:
        names.add("authorization")  # the credential that named the client is for the gateway
    headers = Headers((*wire.headers.without(names), *own))
    if has_two_credentials(headers):
        raise InvalidRequest(REPEATED_CREDENTIAL)
    return HttpRequest(
        wire.method, wire.path, wire.query, headers, wire.body, wire.deadline, client=wire.client
    )


def check_json_body(limits: MessageLimits, body: memoryview) -> None:
    """Reject a JSON body that would occupy a server for a long time; accept all other bodies.

    Raises:
        MalformedMessage: The body begins like JSON but is not valid.
        TooLarge: It is too deep, or has too many keys, lists and objects.
    """
    if not bytes(body[:64]).lstrip(_SPACE).startswith((b"{", b"[")):
        return
    pending: list[Any] = [read_value(body, "the body", limits)]
    containers = 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            check_count("keys", len(value), limits.json_keys, "json_keys")
            values: Any = value.values()
        else:
            values = value
        containers += 1
        if containers > MAX_CONTAINERS:
            raise TooLarge(f"the body has more than {MAX_CONTAINERS} lists and objects")
        pending += [each for each in values if isinstance(each, dict | list)]
