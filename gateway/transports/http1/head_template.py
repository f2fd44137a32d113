"""Heads that repeat except for some values: of tracing, of credentials, of dates, of lengths.

Without these values, the *slots*, the heads of a client or of a server are a few texts. The first
heads of a text are parsed completely. Then a *template* is cached under the text, and of a further
head only the slots are read.

Why the result is the same: the text has the method, all names of fields, and each value that a
transport reads. A slot is a value of printable ASCII characters in a field whose value no parser
reads, a target of a few characters, or a Content-Length of a few digits. So what a slot has does
not change how the rest of a head is read. Anything else is parsed completely.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from gateway.accelerator import accelerated
from gateway.wire.http import Headers

H_co = TypeVar("H_co", covariant=True)

Pair = tuple[str, str]

SplitHead = tuple[bytes, str, int, list[str]]
"""The text around the slots, the target, Content-Length or -1, and the values of all slots."""

END: Final = b"\r\n\r\n"

_CRLF: Final = b"\r\n"
_BLANKS: Final = b" \t"
_LENGTH: Final = b"content-length"
_FIRST_LINE: Final = re.compile(rb"([A-Z]+) (/[-._~%:@!$&'()*+,;=?/0-9A-Za-z]*) (.*)", re.DOTALL)
_NAME: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[\t -~]*")
_DIGITS: Final = re.compile(rb"[1-9][0-9]{0,14}")


class HeaderTemplate(NamedTuple):
    """The fields of a head, some of which are slots.

    Attributes:
        pairs: All of them, with the values of the head that was parsed.
        lowered: The same with names in lower case; the same object where they are in lower case.
        places: The place of each slot; -1 for a field that is left out.
        positions: The place of the first field of each name, in lower case.
    """

    pairs: tuple[Pair, ...]
    lowered: tuple[Pair, ...]
    places: tuple[int, ...]
    positions: Mapping[str, int]


class HeadTemplate(NamedTuple, Generic[H_co]):
    """A parsed head whose slots may be filled again.

    Attributes:
        headers: Its fields.
        fill: Returns a head of the same text. It takes the target of a request, "" for a response;
            Content-Length, -1 where it is no slot; and the fields.
    """

    headers: HeaderTemplate
    fill: Callable[[str, int, Headers], H_co]


Recognise = Callable[[bytes, int, int], tuple[H_co | None, SplitHead | None]]


@accelerated
def head_recogniser(
    template_of: Callable[[bytes], HeadTemplate[H_co] | None],
    fixed: frozenset[bytes],
    most_bytes: int,
    most_target: int,
) -> Recognise[H_co]:
    """Return a function that reads heads by their templates.

    It takes bytes, and the start and the end of a head in them. It returns the head and None. Or it
    returns None and the head, split, where it has no template; None for a head that never has one.

    Args:
        template_of: Returns the template of a text, if there is one.
        fixed: Names of fields, in lower case, whose values belong to the text. Without
            "content-length", whose value does if it is 0 or no number.
        most_bytes: The largest size of a head.
        most_target: The most bytes of a target; 0 where the first line belongs to the text.
    """

    def recognise(data: bytes, at: int, end: int, /) -> tuple[H_co | None, SplitHead | None]:
        cut = None
        if end - at <= most_bytes:
            cut = _split(data[at : end - len(END)], fixed, most_target)
        template = None if cut is None else template_of(cut[0])
        if cut is None or template is None:
            return None, cut
        _, target, length, values = cut
        return template.fill(target, length, _filled(template.headers, values)), None

    return recognise


def _split(head: bytes, fixed: frozenset[bytes], most_target: int) -> SplitHead | None:
    first, *lines = head.split(_CRLF)
    target = b""
    if most_target:
        found = _FIRST_LINE.fullmatch(first)
        if found is None or len(found[2]) > most_target:
            return None
        target, first = found[2], b"%b  %b" % (found[1], found[3])
    text, values, length = [first], [], -1
    for line in lines:
        name, colon, value = line.partition(b":")
        lower = name.lower()
        if lower in fixed:
            text.append(line)
            continue
        value = value.strip(_BLANKS)
        if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return None
        if lower == _LENGTH:
            if not value or length >= 0:
                return None
            if _DIGITS.fullmatch(value) is None:
                text.append(line)
                continue
            length = int(value)
        text.append(name)
        values.append(value.decode("ascii"))
    return _CRLF.join(text), target.decode("ascii"), length, values


def _filled(template: HeaderTemplate, values: Sequence[str]) -> Headers:
    pairs, lowered, places, positions = template
    filled, filled_lowered = list(pairs), list(lowered)
    for place, value in zip(places, values, strict=True):
        if place >= 0:
            filled[place] = pairs[place][0], value
            filled_lowered[place] = lowered[place][0], value
    return Headers(tuple(filled), tuple(filled_lowered), positions)


def header_template(
    headers: Headers,
    fields: Sequence[tuple[bytes, bytes]],
    cut: SplitHead,
    fixed: frozenset[bytes],
) -> HeaderTemplate | None:
    """Return the template of a parsed head; None where its slots are not what was parsed.

    Args:
        headers: What is made of the fields: all of them, or without those that a hop keeps.
        fields: The fields of the parsed head.
        cut: The head, split.
        fixed: Names of fields whose values belong to the text.
    """
    text, _, length, values = cut
    slots = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in fields
        if (length >= 0 if name.lower() == _LENGTH else name.lower() not in fixed)
    ]
    if [value for _, value in slots] != values or text.count(_CRLF) != len(fields):
        return None
    places: list[int] = []
    for pair in slots:
        places.append(_place(headers.pairs, pair, places))
    pairs, lowered = headers.pairs, headers.lowered
    positions: dict[str, int] = {}
    for place, (key, _) in enumerate(lowered):
        positions.setdefault(key, place)
    return HeaderTemplate(pairs, pairs if lowered == pairs else lowered, tuple(places), positions)


def _place(pairs: Sequence[Pair], pair: Pair, others: Sequence[int]) -> int:
    """Return the place of a field that is not one of *others*; -1 if it is left out."""
    for place, each in enumerate(pairs):
        if each == pair and place not in others:
            return place
    return -1
