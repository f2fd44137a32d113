"""Requests as applications send them: what differs between them, and that they can be read."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import applications, messages
from benchmarks.messages import GRPC_METHOD
from gateway.transports.http2.hpack import NO_ENTRIES, Field, decode_block

_AT_ONCE = 3 * applications.REQUESTS


def heads(kind: str, lane: int) -> list[bytes]:
    """Return the heads of a connection, until they begin again."""
    case = messages.small()
    questions = [
        (f"/v2/models/{each.model}/infer", messages.json_request(each))
        for each in applications.cases(case, kind)
    ]
    sent = applications.http_heads(kind, lane, questions)
    return [next(sent).partition(b"\r\n\r\n")[0] for _ in range(applications.REQUESTS)]


@pytest.mark.parametrize("kind", [applications.TRACED, applications.EVERYTHING])
def test_no_two_heads_are_equal(kind: str) -> None:
    """Each request has tracing fields of its own."""
    found = heads(kind, 0) + heads(kind, 1)
    assert len(found) == len(set(found))


def test_everything_has_fourteen_fields_and_a_long_token() -> None:
    """The head is that of a client behind a gateway and a mesh; a token makes it long."""
    for head in heads(applications.EVERYTHING, 2):
        lines = head.split(b"\r\n")[1:]
        assert 14 == len(lines)
        token = next(line for line in lines if line.startswith(b"authorization: "))
        assert 900 <= len(token) <= 1800 + len(b"authorization: Bearer ")


def test_forms_have_64_messages_over_16_models() -> None:
    """Names, shapes and models of the messages differ."""
    cases = applications.cases(messages.small(), applications.FORMS)
    assert (64, 16) == (
        len({tuple(each.inputs) for each in cases}),
        len({each.model for each in cases}),
    )


@pytest.mark.parametrize("kind", applications.KINDS)
def test_header_blocks_are_those_of_one_connection(kind: str) -> None:
    """A decoder reads all of them in turn, and again from the first on."""
    table = NO_ENTRIES
    read: list[list[Field]] = []
    for block in itertools.islice(applications.header_blocks(kind, 3, GRPC_METHOD), _AT_ONCE):
        fields, table = decode_block(block, table, 1 << 16)
        read.append(fields)
    assert all((b":path", GRPC_METHOD.encode()) in fields for fields in read)
    assert read[0] == read[applications.REQUESTS]


def test_a_long_head_has_two_kibibytes_and_is_repeated() -> None:
    """No value differs, so that only its length costs."""
    found = heads(applications.LONG_HEAD, 0) + heads(applications.LONG_HEAD, 1)
    assert {1} == {len(set(found))}
    assert 2000 <= len(found[0]) <= 2100


def test_connections_send_all_forms_before_one_comes_again() -> None:
    """Of 4,096 forms each connection of a load has 128 of its own."""
    questions = range(4096)
    sent = [[*itertools.islice(applications.turns(questions, lane), 128)] for lane in range(32)]
    assert [*questions] == [*itertools.chain(*sent)]
    assert [1, 2, 0, 1] == [*itertools.islice(applications.turns([0, 1, 2], 11), 4)]
