"""Finds the message of a request: JSON, a form with the field `json`, a query, or a multipart form.

Source: docs/protocols/seldon.md, "2. What is served".
"""

import base64
import re
from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.values.nearest import loads_to_odd
from gateway.ir.work import OBJECT_BYTE, charge
from gateway.wire.heads.url_names import form_text
from gateway.wire.http import HttpRequest, media_type
from gateway.wire.rows.read import RowsDocument, read_any, read_rows_document

_FIELD: Final = b"json="
_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_JSON: Final = "application/json"
_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"]{1,200})"|([^\s";]{1,200}))', re.IGNORECASE)
_NAME: Final = re.compile(rb';\s*name="?([A-Za-z]{1,32})"?', re.IGNORECASE)
_FILE: Final = re.compile(rb";\s*filename\*?=", re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"(?im)^content-disposition:[ \t]*form-data(.*)$")
_PARTS: Final = 64


def read_message(wire: HttpRequest, limits: MessageLimits, *, has_nonfinite: bool) -> RowsDocument:
    """Return the message of a request.

    Raises:
        MalformedMessage: There is no JSON object.
        TooLarge: A limit is exceeded.
    """
    view = _field(wire.query.encode(), limits) if wire.query else None
    content = wire.headers.get("content-type") or ""
    kind = media_type(content)
    if view is None:
        if kind == _MULTIPART:
            return _multipart(wire, content, limits, has_nonfinite=has_nonfinite)
        if kind == _FORM:
            view = _field(bytes(wire.view), limits)
            if view is None:
                raise MalformedMessage("the form has no field 'json': expected a message of JSON")
        elif kind in ("", _JSON) or kind.endswith("+json"):
            view = wire.view
        else:
            raise MalformedMessage(
                f"content type is {content[:_PARTS]!r}: expected {_JSON}, {_FORM} or {_MULTIPART}"
            )
    return read_rows_document(view, "the message", limits, has_nonfinite=has_nonfinite)


def _field(text: bytes, limits: MessageLimits) -> memoryview | None:
    """Return the field `json` of an encoded form; None where it is absent."""
    for pair in text.split(b"&", limits.json_keys):
        if pair.startswith(_FIELD):
            charge(len(pair) * OBJECT_BYTE)
            return memoryview(form_text(pair[len(_FIELD) :]))
    return None


def plain_fields(wire: HttpRequest) -> list[memoryview]:
    """Return the values of all fields `json` of the query and of a form, however they are spelled.

    Raises:
        MalformedMessage: There are many fields.
    """
    parts = [wire.query.encode()] if wire.query else []
    if media_type(wire.headers.get("content-type")) == _FORM:
        parts.append(bytes(wire.view))
    found = []
    for part in parts:
        pairs = part.split(b"&", _PARTS)
        if len(pairs) > _PARTS:
            raise MalformedMessage(f"the form has more than {_PARTS} fields")
        for pair in pairs:
            name, _, value = pair.partition(b"=")
            if form_text(name) == _FIELD[:-1]:
                found.append(memoryview(form_text(value)))
    return found


def parts_of(wire: HttpRequest) -> dict[str, Any] | None:
    """Return the members of a form of parts: texts, and bytes of JSON; None for another body.

    Raises:
        MalformedMessage: It has no boundary, a part has no name, or a field occurs twice.
        TooLarge: A limit is exceeded.
    """
    content = wire.headers.get("content-type") or ""
    if media_type(content) != _MULTIPART:
        return None
    return _parts(*_marked(wire, content), lambda part, _what: bytes(part))


def object_of(members: dict[str, Any]) -> bytes:
    """Return the members of a form of parts as an object of JSON."""
    texts = [
        b"%b:%b" % (orjson.dumps(key), orjson.dumps(value) if type(value) is str else value)
        for key, value in members.items()
    ]
    return b"{%b}" % b",".join(texts)


def _marked(wire: HttpRequest, content: str) -> tuple[bytes, bytes]:
    """Return a body of parts, and what is before each of them."""
    found = _BOUNDARY.search(content)
    if found is None:
        raise MalformedMessage("the content type has no boundary: expected one for a form of parts")
    mark = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    body = bytes(wire.view)
    charge(len(body) * OBJECT_BYTE)
    check_count("parts of the form", body.count(mark), _PARTS, "parts")
    return body, mark


def _multipart(
    wire: HttpRequest, content: str, limits: MessageLimits, *, has_nonfinite: bool
) -> RowsDocument:
    body, mark = _marked(wire, content)

    def read(content: memoryview, what: str) -> Any:
        return read_any(content, what, limits, has_nonfinite=has_nonfinite)

    def reread() -> dict[str, Any]:
        return _parts(body, mark, lambda content, _what: loads_to_odd(content))

    return RowsDocument(_parts(body, mark, read), memoryview(body), reread)


def _parts(body: bytes, mark: bytes, read: Callable[[memoryview, str], Any]) -> dict[str, Any]:
    """Return the fields of a form of parts; *read* reads one of JSON, whose name it gets."""
    members: dict[str, Any] = {}
    for part in body.split(mark)[1:]:
        if part.startswith(b"--"):
            break
        name, value = _part(part, read)
        if name in members:
            raise MalformedMessage(f"the form has the field {name!r} twice: expected it once")
        members[name] = value
    return members


def _part(part: bytes, read: Callable[[memoryview, str], Any]) -> tuple[str, Any]:
    """Return name and value of a field of a form of parts."""
    head, separator, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    line = _DISPOSITION.search(head)
    name = None if line is None else _NAME.search(line[1])
    if line is None or name is None or not separator:
        raise MalformedMessage("a part of the form has no name: expected a member of a message")
    key, is_file = name[1].decode(), _FILE.search(line[1]) is not None
    content = content.removesuffix(b"\r\n")
    if key == "binData":
        if not is_file:
            raise MalformedMessage("the field 'binData' is no file: expected a file name")
        return key, base64.b64encode(content).decode()
    if key == "strData":
        try:
            return key, content.decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"the field 'strData' is not UTF-8: {error.reason}") from error
    return key, read(memoryview(content), f"the field {key!r}")
