"""Errors as JSON over HTTP: one description of a protocol's form writes and reads them.

`errors.py` has the statuses of protocols that have none of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError, UpstreamProtocolError
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import (
    clip,
    error_class_of_http,
    extra_headers,
    is_error_status,
    read_error_text,
    strip_traceback,
)
from gateway.wire.http import Headers, HttpResponse, with_headers
from gateway.wire.json.values import short_document
from gateway.wire.opaque import passed_error

JSON: Final = ("Content-Type", "application/json")
NOT_FOLLOWED: Final = "expected 200; redirections are not followed"
_KIND: Final = 128

ErrorRow = tuple[int, str]
"""The HTTP status of an error, and its kind in the document."""


def class_of_status(
    _model: ModelRef | None, status: int, _kind: str, _text: str
) -> type[GatewayError]:
    """Return the class of error that a status means, where nothing else tells it."""
    return error_class_of_http(status)


def error_text(error: GatewayError, limit_bytes: int) -> str:
    """Return the text of *error* for clients, never empty; of a traceback the last line."""
    return clip(strip_traceback(error.message), limit_bytes) or error.code.value


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonErrorReader:
    """Where errors of servers stand in the JSON of one protocol.

    Attributes:
        codec: The codec of the protocol, for the origins of errors.
        texts: Where a document may have the text, as paths of keys. The first text counts; without
            one the body is the text.
        kind: Where it has the kind; () for nowhere.
        no_text: The text for an empty one, from the status.
        error_class: Returns the class of an error from model, status, kind and text.
        no_error: What is wrong with a status that is none of an error, from the text; "" to read
            the response as any other error.
        passes: Errors of servers pass to clients of this codec as they came.
    """

    codec: str
    texts: tuple[tuple[str, ...], ...] = ()
    kind: tuple[str, ...] = ()
    no_text: str = "upstream responded with status {} and no text"
    error_class: Callable[[ModelRef | None, int, str, str], type[GatewayError]] = class_of_status
    no_error: str = ""
    passes: bool = False

    def read(
        self, model: ModelRef | None, wire: HttpResponse, limits: MessageLimits, text: str = ""
    ) -> GatewayError:
        """Return the error in a server's response, with response and kind as origin.

        Args:
            model: The model of the call.
            wire: The response.
            limits: For the length of the text.
            text: That of the response, where the caller has read it.
        """
        document = short_document(wire.view)
        text = text or self._text_in(document, wire, limits.error_text_bytes)
        status, whole = wire.status, self.codec if self.passes else ""
        if self.no_error and not is_error_status(status):
            return UpstreamProtocolError(
                f"upstream responded with HTTP status {status}: {self.no_error.format(text)}",
                model=model,
                origin=Origin(self.codec, wire, whole=whole) if whole else None,
            )
        kind = _text_at(document, self.kind) or ""
        origin = Origin(self.codec, wire, kind[:_KIND] or None, whole=whole)
        return self.error_class(model, status, kind, text)(text, model=model, origin=origin)

    def _text_in(self, document: Any, wire: HttpResponse, limit_bytes: int) -> str:
        found = (_text_at(document, path) for path in self.texts)
        text = next((each for each in found if each is not None), None)
        if text is None:
            text = read_error_text(wire.view, limit_bytes)
        return clip(strip_traceback(text), limit_bytes) or self.no_text.format(wire.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonErrorForm(JsonErrorReader):
    """How errors stand in the JSON of one protocol, in both directions.

    Attributes:
        row: Returns HTTP status and kind of an error.
        document: Returns the body from status, kind and text.
        text: Returns the text of an error, in at most so many bytes.
        end: What follows the document.
        keeps_status: An error of a server of this codec keeps its status and kind.
    """

    row: Callable[[GatewayError], ErrorRow]
    document: Callable[[int, str, str], Any]
    text: Callable[[GatewayError, int], str] = error_text
    end: bytes = b""
    keeps_status: bool = False

    def write(
        self,
        error: GatewayError,
        limits: MessageLimits,
        headers: Sequence[tuple[str, str]] = (),
        row: ErrorRow | None = None,
    ) -> HttpResponse:
        """Return the response with *error*. Never raises.

        Args:
            error: The failure.
            limits: For the length of its text.
            headers: More fields of the response.
            row: Status and kind, whatever the error is; None for its own.
        """
        passed = passed_error(error, self.codec, limits)
        if passed is not None:
            return with_headers(passed, headers)
        status, kind = self._row_of(error) if row is None else row
        document = self.document(status, kind, self.text(error, limits.error_text_bytes))
        fields = Headers((JSON, *extra_headers(error), *headers))
        return HttpResponse(status, fields, (orjson.dumps(document) + self.end,))

    def _row_of(self, error: GatewayError) -> ErrorRow:
        status, kind = self.row(error)
        origin = error.origin
        if not self.keeps_status or origin is None or origin.codec != self.codec:
            return status, kind
        if isinstance(origin.wire, HttpResponse) and is_error_status(origin.wire.status):
            status = origin.wire.status
        return status, origin.form if isinstance(origin.form, str) and origin.form else kind


def _text_at(document: Any, path: tuple[str, ...]) -> str | None:
    """Return the text at a path of keys; None for none."""
    for key in path:
        document = document.get(key) if type(document) is dict else None
    return document if type(document) is str else None
