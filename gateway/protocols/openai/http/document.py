"""Reads the JSON object of a request: known members, each of them once, and texts of Unicode.

Source: docs/protocols/openai.md, "2. Paths" and "3. Embeddings".
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import orjson

from gateway.ir.errors import InvalidMember, MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.values.exact_values import whole_number
from gateway.ir.values.json_objects import reserve_objects
from gateway.ir.work import OBJECT_BYTE, charge, reserve
from gateway.wire.errors import UnsupportedContentType
from gateway.wire.http import HttpRequest
from gateway.wire.json.values import count_keys, load_json, without_mark

MISSING: Final = "missing_required_parameter"
UNKNOWN: Final = "unknown_parameter"
UNSUPPORTED: Final = "unsupported_parameter"
UNSUPPORTED_INPUT: Final = "unsupported_input"

USER: Final = "user"
_INPUT: Final = "input"  # its reader refuses lists that are deeper than those of tokens

_JSON_TYPE: Final = "application/json"
_UTF8: Final = frozenset({"utf-8", "utf8"})
# Bytes of a character of a text, at most.
_WIDEST: Final = 4
_SHOWN: Final = 64
_MOST_STOPS: Final = 4

Document = dict[str, Any]


class RequestDocument(NamedTuple):
    """A request that was read.

    Attributes:
        members: Those that are known, and not null.
        recorded: The request without `user`, which names a person; None where it has none.
        is_plain: All readers of it read the same. False where that takes another look.
    """

    members: Document
    recorded: HttpRequest | None
    is_plain: bool


def read_document(
    wire: HttpRequest, members: frozenset[str], limits: MessageLimits, *, lenient: bool
) -> RequestDocument:
    """Return a request with its members.

    Args:
        wire: The request.
        members: Names of all members that exist.
        limits: The largest body, and the most members.
        lenient: Drop other members.

    Raises:
        InvalidMember: A member does not exist, occurs twice, or is not Unicode.
        InvalidRequest: The body is no JSON object.
        TooLarge: A limit is exceeded.
    """
    check_content_type(wire)
    view = without_mark(wire.view)
    if view.nbytes > limits.json_bytes:
        raise TooLarge(
            f"the body has {view.nbytes} bytes of JSON, at most {limits.json_bytes} are allowed "
            "(json_bytes)",
            limit="json_bytes",
        )
    charge(view.nbytes * OBJECT_BYTE)
    body = bytes(view)
    try:
        found = load_json(body, "the body")
    except MalformedMessage:
        _explain(body)
        raise
    if type(found) is not dict:
        raise MalformedMessage("the body is not a JSON object")
    is_plain = (
        _check_members(found, body, members, limits, lenient=lenient)
        and view.nbytes == wire.view.nbytes
        and not any(name != _INPUT and _has_lists(value) for name, value in found.items())
        and sum(name.lower() == "content-type" for name, _ in wire.headers.pairs) <= 1
    )
    known = {name: value for name, value in found.items() if value is not None and name in members}
    recorded = _with_document(wire, found) if USER in known else None
    return RequestDocument(known, recorded, is_plain)


def without_user(wire: HttpRequest) -> HttpRequest:
    """Return a request without its member `user`, which names a person; its body may be dropped."""
    body = bytes(wire.view)
    if b"user" not in body and b"\\u00" not in body:
        return wire
    try:
        found = load_json(body, "the body")
    except MalformedMessage:
        found = None
    return _with_document(wire, found)


def _with_document(wire: HttpRequest, found: Any) -> HttpRequest:
    """Return a request with a document as body, but for `user`; with no body where it is none."""
    try:
        kept = orjson.dumps({name: each for name, each in found.items() if name != USER})
    except (orjson.JSONEncodeError, AttributeError):
        kept = b""
    head = (wire.method, wire.path, wire.query, wire.headers)
    return HttpRequest(*head, (kept,), wire.deadline, client=wire.client)


def check_content_type(wire: HttpRequest) -> None:
    """Raise UnsupportedContentType unless the body is JSON, or has no type."""
    kind = wire.headers.get("content-type")
    if kind is None or kind == _JSON_TYPE:
        return
    name, *parameters = [part.strip().lower() for part in kind.split(";")]
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "charset" and value.strip().strip('"') not in _UTF8:
            name = kind
    if name not in (_JSON_TYPE, ""):
        raise UnsupportedContentType(
            f"content type {kind[:_SHOWN]!r} is not supported; expected {_JSON_TYPE}"
        )


def wrong(member: str, text: str, reason: str = "") -> InvalidMember:
    """Return the error for a member whose value is wrong."""
    return InvalidMember(f"{member!r} {text}", member=member, reason=reason)


def refused(member: str, why: str = "is not supported") -> InvalidMember:
    """Return the error for a member, or a value of it, that is not built."""
    return wrong(member, why, UNSUPPORTED)


def required(document: Document, member: str, expected: str) -> Any:
    """Return a member. Raises InvalidMember where it is missing."""
    try:
        return document[member]
    except KeyError:
        raise wrong(member, f"is missing; expected {expected}", MISSING) from None


def text(document: Document, member: str, expected: str) -> str:
    """Return a required member that is a text, and not empty."""
    value = required(document, member, expected)
    if type(value) is not str or not value:
        raise wrong(member, f"is {shown(value)}; expected {expected}")
    return value


def optional_text(document: Document, member: str) -> str:
    """Return a member that is a text; "" where it is absent."""
    value = document.get(member, "")
    if type(value) is not str:
        raise wrong(member, f"is {shown(value)}; expected a text")
    return value


def optional_integer(document: Document, member: str, least: int = 1) -> int | None:
    """Return a member that is a whole number of at least *least*; None where it is absent."""
    value = whole_number(document.get(member))
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise wrong(member, f"is {shown(value)}; expected a whole number of at least {least}")
    return value


def optional_flag(document: Document, member: str) -> bool | None:
    """Return a member that is true or false; None where it is absent."""
    value = document.get(member)
    if value is not None and type(value) is not bool:
        raise wrong(member, f"is {shown(value)}; expected true or false")
    return value


def texts(value: Any, member: str, limits: MessageLimits) -> list[bytes]:
    """Return a list of texts as UTF-8, none of them empty."""
    check_items(value, member, limits)
    kinds = set(map(type, value))
    if kinds != {str}:
        raise wrong(member, f"mixes kinds, or has {_kinds(kinds)}; expected texts")
    if "" in value:
        raise wrong(member, f"has an empty text at index {value.index('')}")
    return [each.encode() for each in value]


def check_items(value: Sequence[Any], member: str, limits: MessageLimits) -> None:
    """Charge the work for a list of items. Raises InvalidMember for an empty or too long one."""
    if not value:
        raise wrong(member, "is empty; expected at least one item")
    if len(value) > limits.json_strings:
        raise wrong(
            member, f"has {len(value)} items; expected at most {limits.json_strings} (json_strings)"
        )
    charge(len(value))


def stop_texts(document: Document) -> tuple[str, ...]:
    """Return the texts of `stop`, at most four."""
    value = document.get("stop")
    if value is None:
        return ()
    found = [value] if type(value) is str else value
    if type(found) is not list or len(found) > _MOST_STOPS:
        raise wrong("stop", f"is {shown(value)}; expected a text or up to {_MOST_STOPS} texts")
    if not all(type(each) is str and each for each in found):
        raise wrong("stop", "has an empty text, or something else than texts")
    return tuple(found)


def shown(value: Any) -> str:
    """Return a value as an error may show it: short, and no content of long texts."""
    if type(value) is list:
        return f"a list of {len(value)} items"
    if type(value) is dict:
        return "an object"
    return json.dumps(value)[:_SHOWN]


def _kinds(kinds: set[type]) -> str:
    names = {
        str: "texts",
        int: "numbers",
        float: "fractions",
        bool: "booleans",
        list: "lists",
        dict: "objects",
    }
    return ", ".join(sorted(names.get(kind, "null") for kind in kinds))


def _check_members(
    found: Document,
    body: bytes,
    members: frozenset[str],
    limits: MessageLimits,
    *,
    lenient: bool,
) -> bool:
    """Check the members; return whether that tells that each key of each object occurs once."""
    if lenient:
        check_count("members of the request", len(found), limits.json_keys, "json_keys")
    else:
        for name, value in found.items():
            if name not in members and value is not None:
                raise wrong(
                    name[:_SHOWN],
                    "is no member of this request; expected one of "
                    f"{', '.join(sorted(members))} (unknown_members: ignore)",
                    UNKNOWN,
                )
        check_count("members of the request", len(found), limits.json_keys, "json_keys")
    if b"\\" not in body and body.count(b":") == len(found):
        return True  # each member has a colon, and there are no others
    # A member that occurs twice is rare, and so is what only looks like one.
    has_objects = any(
        type(value) in (dict, list) and _has_objects(value) for value in found.values()
    )
    if (
        has_objects
        or b"\\u00" in body
        or len(found) > len(members)
        or any(body.count(b'"%s"' % name.encode()) > 1 for name in found)
    ):
        _explain(body)
        return False
    return found.keys() <= members and count_keys(found) == len(found)


def _has_lists(value: Any) -> bool:
    return type(value) is list and list in set(map(type, value))


def _has_objects(value: Any) -> bool:
    return type(value) is dict or dict in set(map(type, value))


def _explain(body: bytes) -> None:
    """Raise InvalidMember if a member occurs twice, or has text that is not Unicode."""
    charge(len(body) * OBJECT_BYTE)
    reserve_objects(body)
    reserve(len(body), 2 * _WIDEST * len(body))  # the text, and that of a member
    try:
        found = json.loads(body, object_pairs_hook=_each_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return
    if type(found) is not dict:
        return
    if b"\\u" not in body:  # a lone surrogate is an escape: UTF-8 has none
        return
    for name, value in found.items():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            shown_name = name.encode("utf-8", "replace").decode()[:_SHOWN]
            raise wrong(shown_name, "has a text that is not Unicode: a lone surrogate") from None
        except RecursionError:
            return


def _each_once(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                shown_name = name.encode("utf-8", "replace").decode()[:_SHOWN]
                raise wrong(shown_name, "occurs twice")
            seen.add(name)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
