"""Requests over HTTP that are not modelled: passed on to a server of the same protocol and carrier.

Limits, timeouts and routes are those of every other call. A model in the path is routed and
renamed; a request without a model goes to the first such server. Of the headers, only those that
describe the message and those that `forward_headers` allows are passed on.
"""

import re
import string
from typing import Final
from urllib.parse import unquote_to_bytes

from gateway.ir.calls import OpaqueCall
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import NotFound, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.http.context import NAME, context_of
from gateway.protocols.oip.http.paths import find_route, model_path
from gateway.wire.heads.url_names import decoded_name
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.opaque import CONTENT_HEADERS, passed_request, passed_response

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_OF_MODELS = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/(.+)")
_KEPT: Final = CONTENT_HEADERS | {"inference-header-content-length"}
_UP = frozenset({b"", b".", b".."})
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_UNRESERVED: Final = frozenset(f"{string.ascii_letters}{string.digits}-._~")
_SHOWN = 200


def read_opaque(wire: HttpRequest, limits: MessageLimits) -> OpaqueCall:
    """Return a request of a path that is not modelled as a call.

    Raises:
        NotFound: A part of the path could lead elsewhere at the server, the server could read the
            path as one that is modelled, or the method is odd.
        MalformedMessage, InvalidRequest, TooLarge: The model's name is not allowed.
    """
    if wire.method not in _METHODS or not all(map(_is_plain, wire.path.split("/")[1:])):
        raise NotFound(f"path {wire.path[:_SHOWN]!r} does not exist in Open Inference")
    path = _plainest(wire.path)
    if path != wire.path:
        _refuse_modelled(wire.method, path, limits)
    model, rest = None, ""
    found = _OF_MODELS.fullmatch(path)
    if found is not None:
        version = decoded_name("model version", found[2], limits) if found[2] else ""
        model, rest = ModelRef(decoded_name("model name", found[1], limits), version), found[3]
    message = Origin(NAME, wire, rest)
    return OpaqueCall(model=model, context=context_of(wire, None), message=message)


def _is_plain(segment: str) -> bool:
    decoded = unquote_to_bytes(segment)
    return decoded not in _UP and b"/" not in decoded and b"\\" not in decoded


def _plainest(path: str) -> str:
    """Return *path* without escapes of letters, digits and "-._~", which servers decode first.

    Source: RFC 3986, 6.2.2.2.
    """
    return _ESCAPE.sub(_unescaped, path)


def _unescaped(found: re.Match[str]) -> str:
    character = chr(int(found[0][1:], 16))
    return character if character in _UNRESERVED else found[0]


def _refuse_modelled(method: str, path: str, limits: MessageLimits) -> None:
    """Refuse a path that is modelled: its option, its checks and its route would be passed by."""
    try:
        find_route(method, path, limits)
    except (NotFound, Unsupported):
        return
    raise NotFound(f"path {path[:_SHOWN]!r} does not exist with escaped letters or digits")


def write_opaque(call: OpaqueCall) -> HttpRequest:
    """Return the request that passes *call* on, under the target's name of the model."""
    message = call.message
    path = message.wire.path if call.model is None else model_path(call.model, message.form)
    return passed_request(call, message, path, kept=_KEPT)


def write_opaque_reply(_call: OpaqueCall, reply: Origin) -> HttpResponse:
    """Return the server's response as the client gets it, status and body unchanged."""
    return passed_response(reply, _KEPT)
