"""HTTP messages that pass as they came, between a client and a server of one protocol.

`JsonMessages` says which may, and `gateway.api.protocol.Codec` what is passed.
"""

from collections.abc import Set as AbstractSet
from typing import Any, Final

from gateway.ir.calls import Call
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import TRACEBACK
from gateway.wire.heads.metadata import http_headers, is_header
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json.values import check_same_to_all

_KIND: Final = "content-type"
CONTENT_HEADERS: Final = frozenset({"accept", _KIND})
"""The headers that describe a request; only these are passed on."""

# What a hop writes itself, besides the fields of a message or a connection.
_OF_THE_SERVER: Final = frozenset({"date", "server", "set-cookie", "x-request-id"})
_JSON_TYPE: Final = "application/json"
_JSON: Final = frozenset({"", _JSON_TYPE})
_UTF_8: Final = frozenset({"", "utf-8", "utf8", "us-ascii"})


def passed_request(
    call: Call[Any],
    message: Origin,
    path: str,
    *extra: tuple[str, str],
    kept: AbstractSet[str] = CONTENT_HEADERS,
    without: str = "",
) -> HttpRequest:
    """Return the request of a client with another path, and the headers of the call.

    Args:
        call: What is sent.
        message: The request.
        path: With the model of the call.
        extra: Further headers.
        kept: Names of the headers of the message, in lower case.
        without: Prefix, in lower case, of the headers of the call that are left out.
    """
    request: HttpRequest = message.wire
    others = kept - {_KIND}
    pairs = [pair for pair in request.headers.pairs if pair[0].lower() in others]
    kind = request.headers.get(_KIND)  # the first one, as codecs read it
    own = () if kind is None else ((_KIND, kind),)
    headers = Headers((*own, *pairs, *http_headers(call.context, without=without), *extra))
    deadline = call.context.deadline
    return HttpRequest(request.method, path, request.query, headers, request.body, deadline)


def passed_response(reply: Origin, kept: AbstractSet[str] = frozenset()) -> HttpResponse:
    """Return the response of a server as the client gets it.

    It has all headers but those of a hop, of a connection or of the gateway; and those *kept*.
    """
    wire: HttpResponse = reply.wire
    pairs = [pair for pair in wire.headers.pairs if pair[0].lower() in kept or is_passed(pair)]
    return HttpResponse(wire.status, Headers(pairs), wire.body)


def passed_error(error: GatewayError, whole: str, limits: MessageLimits) -> HttpResponse | None:
    """Return the error of a server whose messages have the form *whole*, as the client gets it.

    None for all others, for long ones, and for those with the traceback of a program. A text may be
    a header, too.
    """
    origin = error.origin
    if origin is None or not whole or origin.whole != whole:
        return None
    wire: HttpResponse = origin.wire
    if wire.view.nbytes > limits.error_text_bytes or TRACEBACK.encode() in bytes(wire.view):
        return None
    if any(
        len(text) > limits.error_text_bytes or TRACEBACK in text for _, text in wire.headers.pairs
    ):
        return None
    return passed_response(origin)


def passed_error_of(
    call: Call[Any] | None, error: GatewayError, limits: MessageLimits
) -> HttpResponse | None:
    """Return the error of a server to which the message of *call* was sent on; see `passed_error`.

    Args:
        call: None for a message that was not read, which no server got.
        error: The error.
        limits: The limits of texts.
    """
    own = None if call is None else call.context.origin
    return None if own is None else passed_error(error, own.whole, limits)


def is_passed(pair: tuple[str, str | bytes]) -> bool:
    """Return whether a header or metadata of a server reaches the client."""
    name = pair[0].lower()
    if name == _KIND:
        return True
    return is_header(name) and name not in _OF_THE_SERVER and not name.startswith("access-control-")


def check_plain(*, is_plain: bool) -> None:
    """Check a message that passes without being read otherwise.

    Raises:
        MalformedMessage: Readers may read different things in it.
    """
    if not is_plain:
        raise MalformedMessage(
            "the body says different things to its readers: expected each key once"
        )


def _is_text(view: memoryview) -> bool:
    try:
        str(view, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


class JsonMessages:
    """How messages of JSON in UTF-8 pass as they came.

    Args:
        limits: The limits of JSON.
        others: Content types that no reader can take for JSON, of texts in UTF-8.
        has_words: Readers read NaN and infinities.
        is_always_json: Servers read JSON, whatever the content type of a request is.
        has_bytes: All content types but those of JSON and *others* are of bytes.
        of_json: Content types of JSON; without bytes, also a request that has none.
    """

    def __init__(
        self,
        limits: MessageLimits,
        others: frozenset[str] = frozenset(),
        *,
        has_words: bool = False,
        is_always_json: bool = False,
        has_bytes: bool = False,
        of_json: frozenset[str] | None = None,
    ) -> None:
        self._limits = limits
        self._others = others
        self._has_words = has_words
        self._is_always_json = is_always_json
        self._has_bytes = has_bytes
        self._of_json = of_json or (frozenset({_JSON_TYPE}) if has_bytes else _JSON)
        self._of_texts = self._of_json | others

    def is_plain(self, wire: HttpRequest | HttpResponse, /) -> bool:
        """Return whether all readers of a message read the same."""
        given = {value for name, value in wire.headers.pairs if name.lower() == _KIND}
        if len(given) > 1:
            return False
        kind, _, rest = "".join(given).lower().partition(";")
        kind = kind.strip()
        if self._has_bytes and kind not in self._of_texts:
            return True
        charset = rest.partition("charset=")[2].strip(" \"'")
        if charset.partition(";")[0].strip(" \"'") not in _UTF_8:
            return False
        if kind in self._of_json or self._is_always_json:
            return self.is_json(wire.view)
        return kind in self._others and _is_text(wire.view)

    def is_json(self, view: memoryview) -> bool:
        """Return whether all readers of a text of JSON read the same."""
        try:
            check_same_to_all(view, "the body", self._limits, has_words=self._has_words)
        except (GatewayError, ValueError):
            return False
        return True

    def passed(self, reply: Origin, /) -> HttpResponse:
        """Return the response of a server as the client gets it."""
        return passed_response(reply)
