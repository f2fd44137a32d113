"""Requests that are dispatched before their bodies are complete."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.transports.contract import ServerLimits
from gateway.transports.http.cut_through import cut_through_limiter, early_dispatch_bytes, whole_of
from gateway.transports.http.request_head import Head
from gateway.wire.http import Headers, HttpRequest
from tests.fakes import FakeArriving
from tests.integration.http_kit import Echo

KIB = 1024


class CutThroughFrontend:
    """A frontend that starts with *enough* bytes of a body, and records its requests."""

    def __init__(self, enough: int | None) -> None:
        self.enough = enough
        self.requests: list[HttpRequest] = []

    def early_bytes(self, wire: HttpRequest, /) -> int | None:
        self.requests.append(wire)
        return self.enough


def head(
    length: int | None, *fields: tuple[str, str], chunked: bool = False, coded: bool = False
) -> Head:
    return Head(
        "POST",
        "/v2/x",
        "q=1",
        Headers(fields),
        length,
        chunked,
        has_expectation=False,
        has_content_coding=coded,
    )


def dispatch_bytes(frontend: Any, request_head: Head, **limits: int) -> int | None:
    return early_dispatch_bytes(
        frontend, request_head, ServerLimits(**{"cut_through_bytes": 64 * KIB, **limits})
    )


def test_a_large_body_is_dispatched_after_enough_bytes() -> None:
    """The frontend sees the request without its body, and returns how many bytes are enough."""
    frontend = CutThroughFrontend(300)
    assert 300 == dispatch_bytes(frontend, head(1 << 20, ("a", "b")))
    (wire,) = frontend.requests
    assert ("POST", "/v2/x", "q=1", "b", ()) == (
        wire.method,
        wire.path,
        wire.query,
        wire.headers.get("a"),
        wire.body,
    )


@pytest.mark.parametrize(
    ("request_head", "limits", "enough"),
    [
        (head(None, chunked=True), {}, 300),
        (head(None), {}, 300),
        (head(1 << 20, coded=True), {}, 300),
        (head(64 * KIB), {}, 300),
        (head(64 * KIB + 299), {}, 300),
        (head(1 << 20), {"cut_through_bytes": 0}, 300),
        (head(1 << 20), {"cut_through_bytes": 2 << 20}, 300),
        (head(1 << 20), {"message_bytes": 1 << 19}, 300),
        (head(1 << 20), {}, None),
        (head(1 << 20), {}, 64 * KIB + 1),
        (head(1 << 20), {}, 2 << 20),
    ],
)
def test_other_bodies_are_received_whole(
    request_head: Head, limits: dict[str, int], enough: int | None
) -> None:
    """Cut-through needs a large plain body with a length, the option, and a small enough head."""
    assert dispatch_bytes(CutThroughFrontend(enough), request_head, **limits) is None


def test_a_frontend_without_cut_through_receives_whole_bodies() -> None:
    """The default of `ServerFrontend` dispatches nothing early."""
    assert dispatch_bytes(Echo(), head(1 << 20)) is None


def test_cut_through_uses_a_quarter_of_the_slots() -> None:
    """Requests whose clients still send hold at most a quarter of the slots."""
    limiter = cut_through_limiter(ServerLimits(requests_in_flight=8))
    assert [True, True, False] == [limiter.try_acquire() for _ in range(3)]


async def test_whole_of_reads_the_rest_of_the_body() -> None:
    """The whole body replaces the received bytes, and no body stream remains."""
    source = FakeArriving(b"{}abc", 2)
    wire = HttpRequest("POST", "/p", "q", Headers((("a", "b"),)), (b"{}",), 5.0, source)
    found = await whole_of(wire)
    assert b"{}abc" == bytes(found.view)
    assert ("POST", "/p", "q", 5.0, None) == (
        found.method,
        found.path,
        found.query,
        found.deadline,
        found.body_stream,
    )
    assert found is await whole_of(found)
