"""Forwarded calls of a migration: which the tap sends, and the bounds of what it holds."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.config.load import load_text
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import InvalidRequest
from gateway.migration.mirror.mirror_tap import MirrorTap
from gateway.migration.mirror.sampling import MirrorLimits
from gateway.migration.replay.wire_messages import row_of
from gateway.migration.targets import live_migrations
from gateway.policies.tap import SampleCalls
from gateway.shadow.packets import socket_pair
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.wire.http import HttpRequest, HttpResponse
from tests.fakes import settle

FORM = "tfs.http kserve"
FILE = """version: 1
listeners: [{http: 0}]
upstreams: {a: {url: "http://h:1"}, b: {url: "http://h:2"}}
routes: [{name: r, targets: [{upstream: a}, {upstream: b, weight: 0}]}]
migrations: {m: {route: r, old: a, new: b, sample: {percent: 100}}}
"""


async def _reply(call: Any, /) -> InferResponse:
    """Return a reply that nobody here reads."""
    origin = Origin("tfs.http", HttpResponse(200, body=(b"{}",)), whole=FORM)
    path = CALL_PATH.get()
    assert path is not None
    path.target = "a"
    return InferResponse(
        model=call.model, outputs=(), error=InvalidRequest("unread"), origin=origin
    )


@pytest.mark.parametrize(
    ("form", "size", "skipped", "dropped", "waiting"),
    [
        (FORM, 100, {}, {}, True),
        ("tfs.http tensorflow", 100, {"forwarded": 1}, {}, False),
        ("", 100, {"forwarded": 1}, {}, False),
        (FORM, 100_001, {}, {"too_large": 1}, False),
    ],
)
async def test_what_becomes_of_a_forwarded_call(
    form: str, size: int, skipped: dict[str, int], dropped: dict[str, int], waiting: bool
) -> None:
    """It waits for the shadow process with its bytes, or is counted; the client gets its reply."""
    (migration,) = live_migrations(load_text(FILE).config)
    wire = HttpRequest("POST", "/v1/models/m:predict", body=(bytes(size),))
    refusal = InvalidRequest("unread")
    context = Context(
        "tfs.http", request_id="r", origin=Origin("tfs.http", wire, whole=FORM, refusal=refusal)
    )
    call = InferRequest(model=ModelRef("m"), context=context)
    ours, theirs = socket_pair()
    with ours, theirs:
        limits = MirrorLimits(outbox_bytes=200_000, sample_bytes=100_000)
        tap = MirrorTap(migration, ours, limits, form)
        token = CALL_PATH.set(CallPath(route="r"))
        reply = await SampleCalls(cast("Any", _reply), tap)(call)
        CALL_PATH.reset(token)
        await settle()
        counts = tap.sampler.counts
        assert reply.origin is not None
        assert (dict(counts.skipped), dict(counts.dropped)) == (skipped, dropped)
        assert waiting is (tap.outbox.used_bytes > size)


def test_large_bodies_are_not_copied() -> None:
    """A small one is, because a view would keep the buffer that it came in."""
    for size, is_copied in ((100, True), (100_000, False)):
        body = row_of("request", 0, HttpRequest("POST", "/", body=(bytes(size),)), None).body
        assert is_copied is isinstance(body, bytes)
