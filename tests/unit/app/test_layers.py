"""Chains are built in the order of the table, and inference skips layers of other calls."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from gateway.api.layer import Calls, Entries, Layer
from gateway.app import layers as module
from gateway.app.build.chain_context import NO_CONTEXT
from gateway.app.chains.rows import PACKAGES, End
from gateway.app.layers import (
    LAYERS,
    SHARED_MODEL,
    build_chain,
    own_layers,
)
from gateway.cli.configuration import describe_layers
from gateway.config.routes import PoliciesConfig
from gateway.ir.calls import InferRequest, ServerLiveRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.tensors.tensor import RequestedOutput
from gateway.policies.forward_headers import forwarding
from gateway.policies.observe import Observe
from gateway.service import ReplyCoroutine, Service
from tests.fakes import ScriptedService


class Noting:
    """A layer that notes its name when a call passes."""

    def __init__(self, name: str, inner: Service, inference: Service, seen: list[str]) -> None:
        self._name = name
        self._inner = inner
        self._inference = inference
        self._seen = seen

    def __call__(self, call: Any, /) -> ReplyCoroutine[Any]:
        self._seen.append(self._name)
        return (self._inference if type(call) is InferRequest else self._inner)(call)


def plain_request(*, has_bytes: bool, **fields: Any) -> InferRequest:
    origin = Origin("oip.http", None, has_bytes=has_bytes)
    return InferRequest(model=ModelRef("m"), context=Context(origin=origin), **fields)


def noting(name: str, *, inference: bool = True) -> Layer:
    return Layer(
        name,
        "notes",
        "route",
        lambda inner, at: Noting(name, inner.questions, inner.inference, at.part(list)),
        Calls.ALL if inference else Calls.QUESTIONS,
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [(ServerLiveRequest(), ["a", "b", "c"]), (InferRequest(model=None), ["a", "c"])],
)
async def test_a_call_passes_the_layers_in_order(
    monkeypatch: pytest.MonkeyPatch, call: Any, expected: list[str]
) -> None:
    """An InferRequest skips the layers that are not for inference."""
    unused = Layer("unused", "is not configured", "route", lambda _inner, _at: None)
    table = {"t": (noting("a"), noting("b", inference=False), unused, noting("c"), End("end", ""))}
    monkeypatch.setattr(module, "LAYERS", MappingProxyType(table))
    seen: list[str] = []
    await build_chain("t", ScriptedService(always=True), NO_CONTEXT.with_parts(seen))(call)
    assert expected == seen


def test_every_chain_ends_in_its_service() -> None:
    """Only the last entry has nothing to build, and one entry has place for other packages."""
    for rows in LAYERS.values():
        assert [rows[-1]] == [row for row in rows if isinstance(row, End)]
        assert 1 == rows.count(PACKAGES)


def test_a_layer_belongs_to_its_chain() -> None:
    """The chain that a layer names is the one in whose table it stands."""
    for chain, rows in LAYERS.items():
        expected = "model" if chain == SHARED_MODEL else chain
        assert {expected} >= {row.chain for row in rows if isinstance(row, Layer)}


def test_the_description_names_every_layer() -> None:
    """`gateway explain --layers` prints each chain and each layer."""
    text = "\n".join(describe_layers())
    assert all(name in text for name in LAYERS)
    assert "model in process" in text
    rows = [row for rows in LAYERS.values() for row in rows if not isinstance(row, str)]
    assert all(f"  {row.name} " in text for row in rows)


def test_each_key_of_policies_belongs_to_a_layer() -> None:
    """The model of the section has no key of its own, so a policy brings its keys along."""
    assert not PoliciesConfig.model_fields
    found = {setting.key for layer in own_layers() for setting in layer.settings}
    assert {"timeout", "retry", "in_flight", "overload", "sequence_idle"} <= found
    of_ends = {"balance", "hash_by", "slow_start", "outlier_detection", "readiness", "sticky_by"}
    assert {"signature", *of_ends} <= found


class Passed(Noting):
    """A layer that a plain inference passes."""

    is_passed_by_plain = True


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (plain_request(has_bytes=True), ["c"]),
        (plain_request(has_bytes=False), ["b", "c"]),
        (plain_request(has_bytes=True).changed(id="changed"), ["b", "c"]),
        (plain_request(has_bytes=True, outputs=(RequestedOutput("y"),)), ["b", "c"]),
    ],
)
@pytest.mark.parametrize("client_header", [None, "x-client"])
async def test_a_plain_inference_passes_layers_that_do_nothing_for_it(
    monkeypatch: pytest.MonkeyPatch, call: Any, expected: list[str], client_header: str | None
) -> None:
    """`Observe` and `ForwardHeaders` send what has its bytes and names no output past them."""

    def headers(inner: Entries, _at: Any) -> Service:
        return forwarding(
            inner.questions, (), {}, client_header, inference=inner.inference, plain=inner.plain
        )

    def observe(inner: Entries, _at: Any) -> Service:
        return Observe(
            inner.questions, lambda _record: None, inference=inner.inference, plain=inner.plain
        )

    def passed(inner: Entries, at: Any) -> Service:
        return Passed("b", inner.questions, inner.inference, at.part(list))

    for first in (headers, observe):
        layers = (Layer("a", "", "route", first), Layer("b", "", "route", passed), noting("c"))
        monkeypatch.setattr(module, "LAYERS", MappingProxyType({"t": (*layers, End("end", ""))}))
        seen: list[str] = []
        await build_chain("t", ScriptedService(always=True), NO_CONTEXT.with_parts(seen))(call)
        assert expected == seen
