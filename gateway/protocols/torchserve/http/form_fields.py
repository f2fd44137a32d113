"""Reads the fields of forms: `application/x-www-form-urlencoded` and `multipart/form-data`.

Values of multipart forms are views of the body.

Source: RFC 7578; RFC 2046 5.1; WHATWG URL, "application/x-www-form-urlencoded".
"""

import re
from collections.abc import Mapping
from typing import Final

from gateway.ir.errors import GatewayError, MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.work import BYTE, OBJECT_BYTE, charge
from gateway.protocols.torchserve.messages import Item
from gateway.wire.heads.url_names import form_text
from gateway.wire.http import Buffer, media_type

JSON_TYPE: Final = "application/json"
URLENCODED: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"
FORMS: Final = frozenset({URLENCODED, MULTIPART})

_MOST_HEAD: Final = 8192
_MOST_BOUNDARY: Final = 70
_PARAMETER: Final = re.compile(r';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*+)"|([^\s;"]*))')
_ESCAPE: Final = re.compile(r"\\(.)")
_BREAK: Final = b"\r\n"


def read_form(view: memoryview, content_type: str, limits: MessageLimits) -> dict[str, Item]:
    """Return the fields of a form by their names; of a repeated name the last one counts.

    Args:
        view: The body.
        content_type: The header, with the boundary of a multipart form.
        limits: `tensors` is the most fields, `name_bytes` the longest name.

    Raises:
        MalformedMessage: It is no form.
        TooLarge: A limit is exceeded.
    """
    if media_type(content_type) == URLENCODED:
        charge(view.nbytes * OBJECT_BYTE)
        return _urlencoded(view, limits)
    charge(view.nbytes * BYTE)
    return _multipart(view, content_type, limits)


def is_plain_form(view: memoryview, content_type: str, limits: MessageLimits) -> bool:
    """Return whether all readers of a form read the same: no field occurs twice."""
    try:
        count = len(read_form(view, content_type, limits))
    except GatewayError:
        return False
    text = bytes(view)
    if media_type(content_type) == URLENCODED:
        return count == sum(map(bool, text.split(b"&")))
    boundary = _parameters(content_type).get("boundary", "").encode()
    return count + 1 == text.count(b"--" + boundary)


def multipart_form(fields: Mapping[str, Buffer]) -> tuple[str, bytes]:
    """Return content type and body of a multipart form.

    Raises:
        Unsupported: A name cannot stand in a header.
    """
    parts = []
    for name, value in fields.items():
        if not name.isprintable() or '"' in name or "\\" in name:
            raise Unsupported(f"input {name[:100]!r} cannot be the name of a field of a form")
        head = f'Content-Disposition: form-data; name="{name}"\r\n\r\n'
        parts.append(head.encode() + bytes(value))
    boundary = b"tensor-gateway"
    while any(boundary in part for part in parts):
        boundary += b"-0"
    lines = [b"--%b\r\n%b\r\n" % (boundary, part) for part in parts]
    lines.append(b"--%b--\r\n" % boundary)
    return f"{MULTIPART}; boundary={boundary.decode()}", b"".join(lines)


def _urlencoded(view: memoryview, limits: MessageLimits) -> dict[str, Item]:
    text = bytes(view)
    check_count("fields of the form", text.count(b"&") + 1, limits.tensors, "tensors")
    found = {}
    for pair in text.split(b"&"):
        if not pair:
            continue
        key, _, value = pair.partition(b"=")
        name = _name(form_text(key), limits)
        found[name] = Item(memoryview(form_text(value)), place=f"field {name!r}")
    return found


def _multipart(view: memoryview, content_type: str, limits: MessageLimits) -> dict[str, Item]:
    boundary = _parameters(content_type).get("boundary", "")
    if not 1 <= len(boundary) <= _MOST_BOUNDARY or not boundary.isascii():
        raise MalformedMessage(
            f"content type {content_type[:100]!r} has no boundary of 1 to {_MOST_BOUNDARY} "
            "ASCII characters: expected one, because the form is multipart"
        )
    text = view.obj if isinstance(view.obj, bytes) and view.nbytes == len(view.obj) else bytes(view)
    whole = memoryview(text)
    delimiter = b"--" + boundary.encode()
    at = _after_delimiter(text, delimiter, 0 if text.startswith(delimiter) else -1)
    found: dict[str, Item] = {}
    count = 0
    while at >= 0:
        count += 1
        check_count("fields of the form", count, limits.tensors, "tensors")
        head_end = text.find(_BREAK * 2, at - len(_BREAK), at + _MOST_HEAD)
        end = text.find(_BREAK + delimiter, max(head_end, at) + len(_BREAK))
        if head_end < 0 or end < 0:
            raise MalformedMessage(
                f"field {count} of the multipart form has no end: expected headers, an "
                f"empty line, the value and the boundary {boundary!r}"
            )
        headers = _headers(text[at:head_end])
        name = _field_name(headers, count, limits)
        begin = head_end + len(_BREAK * 2)
        is_json = media_type(headers.get("content-type")) == JSON_TYPE
        found[name] = Item(whole[begin : max(begin, end)], is_json, f"field {name!r}")
        at = _after_delimiter(text, delimiter, end + len(_BREAK))
    return found


def _after_delimiter(text: bytes, delimiter: bytes, at: int) -> int:
    """Return where the part begins that follows a delimiter; -1 after the last one.

    Args:
        text: The whole form.
        delimiter: Two hyphens and the boundary.
        at: Where a delimiter begins; -1 to look for the first one.
    """
    if at < 0:
        at = text.find(_BREAK + delimiter)
        if at < 0:
            raise MalformedMessage("the multipart form does not have its boundary")
        at += len(_BREAK)
    at += len(delimiter)
    if text.startswith(b"--", at):
        return -1
    line_end = text.find(_BREAK, at, at + _MOST_HEAD)
    if line_end < 0 or text[at:line_end].strip(b" \t"):
        raise MalformedMessage("the multipart form has other text behind its boundary")
    return line_end + len(_BREAK)


def _headers(head: bytes) -> dict[str, str]:
    found = {}
    for line in head.decode("utf-8", "replace").split("\r\n"):
        key, colon, value = line.partition(":")
        if colon:
            found[key.strip().lower()] = value.strip()
    return found


def _field_name(headers: dict[str, str], number: int, limits: MessageLimits) -> str:
    name = _parameters(headers.get("content-disposition", "")).get("name")
    if name is None:
        raise MalformedMessage(
            f"field {number} of the multipart form has no name: expected a header "
            "Content-Disposition with one"
        )
    return _name(name.encode("utf-8", "replace"), limits)


def _parameters(header: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, quoted, plain in _PARAMETER.findall(header):
        found.setdefault(key.lower(), _ESCAPE.sub(r"\1", quoted) if quoted else plain)
    return found


def _name(data: bytes, limits: MessageLimits) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"the name of a field is not UTF-8: {error.reason}") from error
    check_name("name of a field", name, limits.name_bytes, "name_bytes")
    return name
