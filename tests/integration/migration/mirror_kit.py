"""Gateways with a live migration: two servers of the demo's model, and clients of every protocol."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import yaml

from gateway.app import Gateway, complete_service, connect
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.migration.mirror.shadow_evidence import ShadowEvidence
from gateway.migration.serving import MigrationServing
from gateway.settings.units import parse_url
from tests.integration.asking_kit import WHOLE, running, server_config, urls
from tests.integration.http_kit import eventually

NAME = "digits"
RULES = {"outputs": {"label": "exact", "probabilities": {"top_k": 1}}}

Scans = npt.NDArray[np.float32]


def evidence_of(gateway: Gateway) -> ShadowEvidence:
    """Return what the shadow process of a gateway without workers finds."""
    part = gateway.parts._parts["migration"]
    assert isinstance(part, MigrationServing)
    assert part.evidence is not None
    return part.evidence


def migration_config(
    old: str,
    new: str,
    *,
    versions: tuple[str | None, str | None] = ("1", "2"),
    weights: tuple[int, int] = (1, 0),
    more: Mapping[str, Any] | None = None,
    **migration: Any,
) -> str:
    """Return a configuration that moves `digits` from one URL to another.

    Args:
        old: URL of the upstream `legacy`.
        new: URL of the upstream `fresh`.
        versions: Of the model at both; None where the protocol has none.
        weights: Of both targets.
        more: Further top-level keys.
        migration: Further keys of the migration.
    """
    targets = []
    for name, version, weight in zip(("legacy", "fresh"), versions, weights, strict=True):
        target: dict[str, Any] = {"upstream": name, "weight": weight}
        targets.append(target if version is None else {**target, "version": version})
    names = [
        name if version is None else f"{name}:{version}"
        for name, version in zip(("legacy", "fresh"), versions, strict=True)
    ]
    config: dict[str, Any] = {
        "version": "1",
        "listeners": [{"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}],
        "admin": {"address": "127.0.0.1:0", "metrics": None},
        "lifecycle": {"pre_stop": "0s", "drain": "1s"},
        "upstreams": {"legacy": {"url": old}, "fresh": {"url": new}},
        "routes": [{"name": NAME, "targets": targets}],
        "migrations": {
            NAME: {
                "route": NAME,
                "old": names[0],
                "new": names[1],
                "sample": {"percent": 100, "per_second": 100_000},
                "compare": RULES,
                **migration,
            }
        },
        **(more or {}),
    }
    return yaml.safe_dump(config)


@asynccontextmanager
async def servers() -> AsyncIterator[dict[str, str]]:
    """Run a server of both versions; yield its URL by protocol and carrier."""
    async with running(server_config()) as server:
        yield urls(server, NAME)


async def classify(
    gateway: Gateway,
    protocol: str,
    scans: Scans,
    version: str = "",
    prefix: str = "row",
    model: str = NAME,
) -> list[npt.NDArray[Any]]:
    """Send each scan as one call with its number as request id; return the labels."""
    url = parse_url(urls(gateway, model)[protocol])
    connected = connect(url)
    service = complete_service(connected, url)
    labels = []
    try:
        for row, scan in enumerate(scans):
            context = Context(
                request_id=f"{prefix}-{row}", deadline=time.monotonic() + 20, needs=WHOLE
            )
            tensor = array_tensor("X", scan[np.newaxis])
            call = InferRequest(model=ModelRef(model, version), context=context, inputs=(tensor,))
            reply = await service(call)
            labels.append(next(as_numpy(each) for each in reply.outputs if each.name == "label"))
    finally:
        await connected.close()
    return labels


async def evidence(
    gateway: Gateway, condition: Callable[[Mapping[str, Any]], bool], migration: str = NAME
) -> Mapping[str, Any]:
    """Return the first evidence of a migration that fulfils *condition*."""

    def so_far() -> Mapping[str, Any] | None:
        found = evidence_of(gateway).evidence.get(migration)
        return None if found is None or not condition(found.document) else found.document

    document = await eventually(so_far)
    assert document is not None
    return document


def has_compared(count: int) -> Callable[[Mapping[str, Any]], bool]:
    return lambda document: document["compared"] >= count


async def metrics(gateway: Gateway) -> dict[str, float]:
    """Return the values of all metrics of migrations and of the shadow process."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{gateway.addresses['admin']}/metrics") as response,
    ):
        return values(await response.text())


def values(text: str) -> dict[str, float]:
    """Return the values of all metrics of migrations and of the shadow process on a page."""
    lines = re.findall(r"^(gateway_(?:migration|shadow|capture)_\S+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def total(found: Mapping[str, float], name: str) -> float:
    """Return the sum of a metric over its labels."""
    return sum(value for key, value in found.items() if key.partition("{")[0] == name)


def is_balanced(found: Mapping[str, float]) -> bool:
    """Return whether every chosen call is compared, skipped or dropped."""
    parts = ("samples_total", "skipped_total", "dropped_total")
    results = sum(total(found, f"gateway_migration_{part}") for part in parts)
    return total(found, "gateway_migration_sampled_total") == results


async def until(
    gateway: Gateway, condition: Callable[[dict[str, float]], bool]
) -> dict[str, float]:
    """Return the first metrics that fulfil *condition*."""

    async def so_far() -> dict[str, float]:
        found = await metrics(gateway)
        return found if condition(found) else {}

    return await eventually(so_far)


def balances(document: Mapping[str, Any]) -> bool:
    """Return whether the books of an evidence balance."""
    results = document["compared"] + document["in_flight"]
    results += sum(document["skipped"].values()) + sum(document["dropped"].values())
    return bool(document["sampled"] == results)


def state(directory: Path) -> dict[str, Any]:
    return {"state": {"directory": str(directory)}}
