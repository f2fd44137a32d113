"""Requests as applications send them: with values of their own, of many clients, in many forms.

A proxy adds `x-request-id`, OpenTelemetry `traceparent`, and each client its token. Of the requests
of a kind no two need be equal, but they repeat after a while, so that they exist before a
measurement begins.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
from hpack import Encoder
from hpack.struct import HeaderTuple, NeverIndexedHeaderTuple

from benchmarks.messages import Case, Message

T = TypeVar("T")

TRACED: Final = "traced"
CLIENTS: Final = "clients"
FORMS: Final = "forms"
EVERYTHING: Final = "everything"
KINDS: Final = (TRACED, CLIENTS, FORMS, EVERYTHING)
"""Tracing fields of its own in each request; 1,000 clients with long tokens and user agents of
their own; 64 forms of message over 16 models; all of it, with 14 header fields."""

LONG_HEAD: Final = "long head"
MANY_FORMS: Final = "4096 forms"
EXTREMES: Final = (LONG_HEAD, MANY_FORMS)
"""The same head of 2 KiB in each request; more forms of message than any cache holds."""

REQUESTS: Final = 64
"""The requests of one connection, before they begin again."""

_CLIENTS: Final = 1000
_FORMS: Final = {FORMS: 64, EVERYTHING: 64, MANY_FORMS: 4096}
_MODELS: Final = 16
_LANES: Final = 32
"""The connections of a load, each of which begins at another form."""
_LONG_TOKEN: Final = 1900
_BYTES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_RESIZES: Final = b"\x20\x3f\xe1\x1f"
"""Empties the table of the decoder: sizes of 0, then of 4,096 bytes. Source: RFC 7541 6.3."""

Fields = list[tuple[str, str]]


def models(case: Case) -> list[str]:
    """Return the names of the models of *FORMS*."""
    return [case.model, *(f"{case.model}_{number}" for number in range(1, _MODELS))]


def cases(case: Case, kind: str) -> list[Case]:
    """Return the inferences of a kind: one, or many forms over 16 models."""
    if kind not in _FORMS:
        return [case]
    random_numbers = np.random.default_rng(17)
    found = []
    for number in range(_FORMS[kind]):
        inputs = {
            f"{name}_{number}": random_numbers.integers(
                -1000, 1000, (1, 1 + number % 31), array.dtype
            )
            for name, array in case.inputs.items()
        }
        model = models(case)[number % _MODELS]
        found.append(replace(case, model=model, inputs=inputs))
    return found


def turns(questions: Sequence[T], lane: int) -> Iterator[T]:
    """Yield *questions* in turn, forever; each connection begins at another one."""
    first = lane * len(questions) // _LANES
    return itertools.cycle([*questions[first:], *questions[:first]])


def fields(kind: str, lane: int) -> Iterator[Fields]:
    """Yield the header fields of the requests of a connection, without those of the message."""
    own = random.Random(lane)  # noqa: S311  # no secrets
    for number in itertools.count():
        client = (lane + number * 37) % _CLIENTS
        found: Fields = []
        if kind == EVERYTHING:
            found += [
                ("accept", "*/*"),
                ("accept-language", "en-GB,en;q=0.9"),
                ("x-forwarded-for", f"10.1.{client // 250}.{client % 250}"),
                ("x-forwarded-proto", "https"),
                ("x-envoy-attempt-count", "1"),
                ("x-envoy-expected-rq-timeout-ms", "15000"),
            ]
        if kind in (CLIENTS, EVERYTHING):
            found += [
                ("user-agent", f"client-{client}/1.{client % 7} (linux; x86_64) runtime/2.31"),
                ("authorization", f"Bearer {_token(client)}"),
            ]
        if kind == LONG_HEAD:
            found.append(("authorization", f"Bearer {'t' * _LONG_TOKEN}"))
        if kind in (TRACED, EVERYTHING):
            trace, span = own.getrandbits(128), own.getrandbits(64)
            found += [
                ("traceparent", f"00-{trace:032x}-{span:016x}-01"),
                ("tracestate", f"vendor=t61rc{span & 0xFFFFFF:06x},other={trace & 0xFFFFFFFF:08x}"),
                ("x-request-id", _uuid(own.getrandbits(128))),
            ]
        yield found


def _token(client: int) -> str:
    """Return the token of a client, which looks like a signed JSON Web Token."""
    own = random.Random(client)  # noqa: S311  # no secrets
    parts = (36, own.randint(520, 1400), 342)
    return ".".join("".join(own.choices(_BYTES, k=size)) for size in parts)


def _uuid(number: int) -> str:
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def http_heads(kind: str, lane: int, questions: Sequence[tuple[str, Message]]) -> Iterator[bytes]:
    """Yield the requests of one connection of HTTP/1; they repeat after a while.

    Args:
        kind: One of *KINDS*.
        lane: Number of the connection.
        questions: Paths and messages, which are sent in turn.
    """
    found = []
    count = max(REQUESTS, len(questions) // _LANES)
    own_fields = itertools.islice(fields(kind, lane), count)
    for own, (path, message) in zip(own_fields, turns(questions, lane), strict=False):
        every = [("host", "127.0.0.1:8000"), *own, *message.fields]
        lines = [f"{name}: {value}" for name, value in every]
        lines.append(f"content-length: {len(message.body)}")
        head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()
        found.append(head + message.body)
    return itertools.cycle(found)


def header_blocks(kind: str, lane: int, method: str) -> Iterator[bytes]:
    """Yield the header blocks of one connection of gRPC; they repeat after a while.

    Fields enter the table as those of the usual clients do. The strings of *TRACED* have Huffman
    codes, those of the others do not, and no token enters the table.
    """
    encoder = Encoder()
    found = []
    for own in itertools.islice(fields(kind, lane), REQUESTS):
        every: list[HeaderTuple] = [
            HeaderTuple(":method", "POST"),
            HeaderTuple(":scheme", "http"),
            HeaderTuple(":path", method),
            HeaderTuple(":authority", "127.0.0.1"),
            HeaderTuple("content-type", "application/grpc"),
            HeaderTuple("te", "trailers"),
        ]
        for pair in own:
            secret = pair[0] == "authorization"
            every.append(NeverIndexedHeaderTuple(*pair) if secret else HeaderTuple(*pair))
        found.append(encoder.encode(every, huffman=kind == TRACED))
    found[0] = _RESIZES + found[0]
    return itertools.cycle(found)


def reply_fields(kind: str) -> Callable[[], bytes]:
    """Return a function that returns the lines that a server writes into its next response."""
    if kind not in (TRACED, EVERYTHING):
        return bytes
    own = random.Random(5)  # noqa: S311  # no secrets
    lines = [
        (
            f"date: Thu, 26 Nov 2026 {number // 3600 % 24:02}:{number // 60 % 60:02}:"
            f"{number % 60:02} GMT\r\nx-request-id: {_uuid(own.getrandbits(128))}\r\n"
            f"server-timing: infer;dur={own.randint(100, 99_999) / 1000}\r\n"
        ).encode()
        for number in range(2048)
    ]
    return itertools.cycle(lines).__next__
