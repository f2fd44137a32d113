"""Chains are built in the order of the table, and inference skips layers of other calls."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from gateway.app import layers as module
from gateway.app.layers import LAYERS, Layer, build_chain, describe_layers
from gateway.ir.calls import InferRequest, ServerLiveRequest
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


def noting(name: str, *, inference: bool = True) -> Layer:
    return Layer(
        name,
        "notes",
        lambda inner, seen: Noting(name, inner.calls, inner.inference, seen),
        inference,
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [(ServerLiveRequest(), ["a", "b", "c"]), (InferRequest(model=None), ["a", "c"])],
)
async def test_a_call_passes_the_layers_in_order(
    monkeypatch: pytest.MonkeyPatch, call: Any, expected: list[str]
) -> None:
    """An InferRequest skips the layers that are not for inference."""
    unused = Layer("unused", "is not configured", lambda _inner, _seen: None)
    table = {
        "t": (noting("a"), noting("b", inference=False), unused, noting("c"), Layer("end", ""))
    }
    monkeypatch.setattr(module, "LAYERS", MappingProxyType(table))
    seen: list[str] = []
    await build_chain("t", ScriptedService(always=True), seen)(call)
    assert expected == seen


def test_every_chain_ends_in_its_service() -> None:
    """Only the last entry has nothing to build; the chain of targets is an exception."""
    ends = {name: [layer.build is None for layer in layers] for name, layers in LAYERS.items()}
    expected = {
        name: [False] * (len(layers) - 1) + [True]
        for name, layers in LAYERS.items()
        if name != "target"
    }
    assert expected == {name: flags for name, flags in ends.items() if name != "target"}


def test_the_description_names_every_layer() -> None:
    """`gateway explain --layers` prints each chain and each layer."""
    text = "\n".join(describe_layers())
    assert all(name in text for name in LAYERS)
    assert all(f"  {layer.name} " in text for layers in LAYERS.values() for layer in layers)
