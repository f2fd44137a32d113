"""Layers for each chain that refuse a request by what they read of its tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from gateway import registry
from gateway.api import Calls, Entries, Layer, LayerContext, Reads, Service, Setting
from gateway.api.layer import Chain
from gateway.api.tensors import Forbidden, InferRequest, TooLarge, as_numpy, inference_of
from gateway.config import extended
from tests.extension.kit import importable, install

CHAINS: tuple[str, ...] = get_args(Chain)
INPUT = "INPUT0"
NEEDS = tuple(each.value for each in Reads)


class Refusing:
    """Refuses what it is configured to refuse."""

    def __init__(self, inner: Entries, limits: Mapping[str, Any], at: LayerContext) -> None:
        self._inner = inner.questions
        self._limits = limits
        self._at = at

    async def __call__(self, call: Any, /) -> Any:
        request = inference_of(call)
        assert request is not None
        with self._at.span("look up", call, table="limits") as inside:
            self._check(request)
            return await self._inner(inside)

    def _check(self, request: InferRequest) -> None:
        elements = self._limits.get("elements")
        if (
            elements is not None
            and sum(prod(each.shape or ()) for each in request.inputs) > elements
        ):
            raise TooLarge(f"expected at most {elements} elements")
        if "names" in self._limits and any(each.name != INPUT for each in request.inputs):
            raise Forbidden(f"expected the input {INPUT}")
        if "finite" in self._limits:
            for each in request.inputs:
                if not np.isfinite(as_numpy(each)).all():
                    raise Forbidden("expected finite numbers")


def setting(chain: str) -> Setting[dict[str, int]]:
    """Return the key of the layer of a chain."""
    return Setting(
        key=f"refuse_{chain}", type=dict[str, int], default={}, places=("policies",), help="Limits."
    )


def _layer(chain: Any, needs: Reads) -> Layer:
    own = setting(f"{chain}_{needs.value}")

    def build(inner: Entries, at: LayerContext) -> Service | None:
        limits = at.setting(own)
        return Refusing(inner, limits, at) if limits else None

    return Layer(
        "Refusing",
        "refuses",
        chain,
        build,
        calls=Calls.INFERENCE,
        settings=(own,),
        needs=needs,
    )


def __getattr__(name: str) -> Layer:
    chain, _, needs = name.partition("_")
    if chain not in CHAINS:
        raise AttributeError(name)
    return _layer(chain, Reads(needs))


CACHED = (
    (registry, "_of_packages"),
    (registry, "_settings"),
    (extended, "_extended"),
)
"""What is found once in a process: the packages, and the classes that depend on them."""


@contextmanager
def discovered(site: Path) -> Iterator[None]:
    """Find the packages of *site*, until the end of the block.

    What was found before is found again after it: configurations that were read before are pickled
    by the names of their classes.
    """
    with importable(site), pytest.MonkeyPatch.context() as patch:
        for module, name in CACHED:
            patch.setattr(module, name, functools.cache(getattr(module, name).__wrapped__))
        yield


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """Install the layers, until the end of the block."""
    names = [f"{chain}_{needs}" for chain in CHAINS for needs in NEEDS]
    entries = {name: f"tests.extension.readers:{name}" for name in names}
    install(site, "gateway-readers", {"gateway.layers": entries})
    with discovered(site):
        yield
