"""A million heads and a million header blocks are read the same by both builds, hostile ones too.

Valid, odd and hostile ones are read as they are, and then with another single bit changed each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Any

import pytest

from gateway.accelerator import EXTENSION, PYTHON_VERSIONS
from gateway.transports.http1.head_reader import HeadReader, RequestHead, RequestHeadCache
from gateway.transports.http1.head_template import END
from gateway.transports.http1.request import BufferedRequest
from gateway.transports.http1.response_reader import ResponseHead, ResponseHeadCache
from gateway.transports.http2.hpack import NO_ENTRIES, Table
from tests.accelerated_parts import decode_block, outcome, read_call_block, use_functions
from tests.hostile import test_grpc_frames, test_http_framing
from tests.hostile.frames import CONTINUATION, HEADERS, PADDED, PREFACE, PRIORITISED
from tests.properties.test_head_templates import (
    LIMITS,
    hostile_heads,
    replied,
    reply_head,
    request_head,
    requested,
)

compiled = pytest.importorskip(EXTENSION, reason="the extension is not built: no C compiler")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_COUNT = int(os.environ.get("MANY_HEADS", "1000000"))
_SHORT = 1024
_DRAWN = 300

Recognise = Callable[[bytes, int, int], tuple[Any, Any]]


def with_other_bits(seeds: Sequence[bytes], count: int) -> Iterator[tuple[int, bytes]]:
    """Yield *count* copies with one other bit, and which seed each is of; all bits get their turn.

    Args:
        seeds: None is empty; the long ones are left out, because a copy costs more than a check.
        count: How many copies.
    """
    short = [(index, bytearray(seed)) for index, seed in enumerate(seeds) if len(seed) <= _SHORT]
    for number in range(count):
        turn, place = divmod(number, len(short))
        index, changed = short[place]
        at, bit = divmod(turn * 37 % (8 * len(changed)), 8)
        changed[at] ^= 1 << bit
        yield index, bytes(changed)
        changed[at] ^= 1 << bit


def whole_heads(data: Iterator[bytes]) -> list[bytes]:
    """Return the first head of each message that has one."""
    return [head + END for head, end, _ in (each.partition(END) for each in data) if end]


def request_recogniser(source: Mapping[str, Any], seeds: Sequence[bytes]) -> Recognise:
    """Return what reads heads of requests by the functions of *source*, with templates of *seeds*."""
    with pytest.MonkeyPatch.context() as patch:
        use_functions(source, patch)
        memory = RequestHeadCache(LIMITS)
        for seed in (*seeds, *seeds):
            requested(HeadReader(LIMITS, memory), memory, seed)

    def recognise(data: bytes, at: int, end: int) -> tuple[Any, Any]:
        """Return what a template recognises; the same head begins a request."""
        reader = HeadReader(LIMITS, memory)
        reader.unsampled = 1
        request = source["known_request"](memoryview(data), end, reader)
        found = memory.recognise(data, at, end)
        assert found[0] == (request._head if isinstance(request, BufferedRequest) else request)
        return found

    return recognise


def response_recogniser(source: Mapping[str, Any], seeds: Sequence[bytes]) -> Recognise:
    """Return the same for heads of responses."""
    with pytest.MonkeyPatch.context() as patch:
        use_functions(source, patch)
        memory = ResponseHeadCache()
        for seed in (*seeds, *seeds):
            replied(memory, seed)
        return memory.recognise


def shown(found: tuple[Any, Any]) -> object:
    """Return what was recognised with all that the fields are looked up by."""
    head, cut = found
    if isinstance(head, RequestHead):
        assert head.checked is not None
        return head, head.checked.headers.lowered, head.checked.headers.positions
    if isinstance(head, ResponseHead):
        return head, head.headers.lowered, head.headers.positions
    return head, cut


def count_recognised(
    recogniser: Callable[[Mapping[str, Any], Sequence[bytes]], Recognise],
    seeds: Sequence[bytes],
    count: int,
) -> int:
    """Compare both builds for *count* heads; return how many of them fit a template."""
    python, fast = recogniser(PYTHON_VERSIONS, seeds), recogniser(vars(compiled), seeds)
    recognised = 0
    for head in chain(seeds, (head for _, head in with_other_bits(seeds, count))):
        end = head.find(END) + len(END)
        if end >= len(END):
            expected = python(head, 0, end)
            assert shown(expected) == shown(fast(head, 0, end)), head
            recognised += expected[0] is not None
    return recognised


def test_a_million_heads_are_recognised_the_same() -> None:
    """Both builds fill the same templates, and split all other heads at the same places."""
    random = Random(8)  # noqa: S311  # inputs of a test
    legal = (*test_http_framing.LEGAL.values(), *test_http_framing.TOLERATED.values())
    requests = whole_heads(iter((*hostile_heads(), *legal)))
    requests += [request_head(random) for _ in range(_DRAWN)]
    responses = [reply_head(random) for _ in range(_DRAWN)]
    most = _COUNT * 2 // 3  # the rest are responses
    assert count_recognised(request_recogniser, requests, most) > most // 10
    assert count_recognised(response_recogniser, responses, _COUNT - most) > most // 50


def hostile_blocks() -> Iterator[bytes]:
    """Yield the payloads of frames with header fields in the hostile suite, without padding."""
    for data in (*test_grpc_frames.CASES.values(), *test_grpc_frames.SILENT.values()):
        at = len(PREFACE) if data.startswith(PREFACE) else 0
        for _ in range(20):  # the others of a flood are equal
            size = int.from_bytes(data[at : at + 3], "big")
            kind, flags = data[at + 3 : at + 4], data[at + 4 : at + 5]
            if kind in (bytes([HEADERS]), bytes([CONTINUATION])):
                skipped = bool(flags[0] & PADDED) + 5 * bool(flags[0] & PRIORITISED)
                yield data[at + 9 + skipped : at + 9 + size]
            at += 9 + size


def block_seeds(random: Random) -> list[tuple[bytes, Table]]:
    """Return hostile blocks and those of encoders, with the tables of fields before them."""
    found = [(block, NO_ENTRIES) for block in dict.fromkeys(hostile_blocks())]
    assert len(found) > 50
    for _ in range(_DRAWN):
        _, _, block, table = read_call_block(random)
        found.append((block, table))
        block, table, _ = decode_block(random)
        found.append((block, table))
    return [(block, table) for block, table in found if block]


@pytest.mark.parametrize(
    ("name", "limits"), [("read_call_block", (1 << 16, 8192)), ("decode_block", ())]
)
def test_a_million_header_blocks_are_read_the_same(name: str, limits: tuple[int, ...]) -> None:
    """Both builds find the same fields, table and error in each of them."""
    seeds = block_seeds(Random(9))  # noqa: S311  # inputs of a test
    python, fast = PYTHON_VERSIONS[name], getattr(compiled, name)
    changed = with_other_bits([block for block, _ in seeds], _COUNT)
    read = 0
    for block, table in chain(seeds, ((block, seeds[index][1]) for index, block in changed)):
        arguments = (*limits, block, table) if limits else (block, table, 1 << 16)
        expected = outcome(name, python, arguments)
        assert expected == outcome(name, fast, arguments), (block, table)
        read += not isinstance(expected[0], type)  # type: ignore[index]  # a tuple
    assert read > _COUNT // 10
