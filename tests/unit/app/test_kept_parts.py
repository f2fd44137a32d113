"""A reload replaces the parts that a change concerns, and keeps all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

import pytest
import yaml

from gateway.app import Gateway, StartError
from gateway.app.build.batching import PerModelService
from gateway.config.load import LoadedConfig, load_text
from gateway.registry import settings

SIMPLE: Final = {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
SIGNATURE: Final = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}], "outputs": []}
BASE: Final[dict[str, Any]] = {
    "version": 1,
    "listeners": [{"http": "127.0.0.1:0"}],
    "admin": {"address": None, "metrics": None},
    "lifecycle": {"pre_stop": "0s"},
    "upstreams": {
        "a": {"url": "oip+http://127.0.0.1:1", "residency": {"models": 2}},
        "b": {"url": "oip+grpc://127.0.0.1:2"},
    },
    "models": {"digits": {"cache": {}, "batching": {}}, "local": {**SIMPLE, "cache": {}}},
    "routes": [
        {"name": "digits", "match": {"model": "digits"}, "targets": [{"upstream": "a"}]},
        {"name": "local", "match": {"model": "local"}, "targets": [{"model": "local"}]},
        {"name": "b", "match": {"model": "b-*"}, "targets": [{"upstream": "b"}]},
    ],
}
ROUTES: Final = {"route digits", "route local", "route b"}
LIMITS: Final = {"limit digits", "limit local", "limit b"}

# What a change adds to the file, and which parts of the base it replaces.
CHANGES: Final[Mapping[str, tuple[dict[str, Any], set[str]]]] = {
    "nothing": ({}, set()),
    "a cached model": ({"models": {"other": {"cache": {}}}}, set()),
    "a batched model": ({"models": {"other": {"batching": {}}}}, set()),
    "a signature": ({"models": {"third": {"signature": SIGNATURE}}}, set()),
    "a declaration": ({"models": {"third": {"protocols": {"seldon": {}}}}}, set()),
    "a model of the gateway": ({"models": {"own": SIMPLE}}, set()),
    "an upstream": ({"upstreams": {"c": {"url": "oip+http://127.0.0.1:3"}}}, set()),
    "another upstream": (
        {"upstreams": {"b": {"url": "oip+grpc://127.0.0.1:3"}}},
        {"upstream b", "target b", "route b", "shared model b/digits"},
    ),
    "a route": ({"routes": [{"match": {"model": "c"}, "targets": [{"upstream": "b"}]}]}, set()),
    "a client": ({"clients": {"team": {"groups": ["x"]}}}, set()),
    "the drain": ({"lifecycle": {"drain": "7s"}}, set()),
    "the log": ({"telemetry": {"log": {"level": "warning"}}}, set()),
    "the queue of a cached model": (
        {"models": {"digits": {"batching": {"max_batch_size": 4}}}},
        {"shared model a/digits", "shared model b/digits"},
    ),
    "the signature of a model that is called": (
        {"models": {"digits": {"signature": SIGNATURE}}},
        {"upstream a", "target a", "route digits", "shared model a/digits"}
        | {"shared model b/digits"},
    ),
    "the cache of a model of the gateway": (
        {"models": {"local": {"cache": {"max_age": "7s"}}}},
        {"model target local", "route local"},
    ),
}
POLICIES: Final[Mapping[str, tuple[Any, set[str]]]] = {
    "overload": ({}, set()),
    "sequence_idle": ("7s", ROUTES | {"affinity digits", "affinity local", "affinity b"}),
    "sequences_per_client": (7, ROUTES),
    "sequence_client_header": ("x-team", ROUTES),
    "timeout": ("7s", ROUTES),
    "stream_idle": ("7s", ROUTES),
    "retry": ({"attempts": 3}, ROUTES),
    "in_flight": (7, ROUTES | LIMITS),
    "queued": (7, ROUTES | LIMITS),
    "queue_wait": ("7s", ROUTES | LIMITS),
    "queue_target": ("7ms", ROUTES | LIMITS),
}


def changed(change: Mapping[str, Any]) -> LoadedConfig:
    """Return the base with a change: sections are merged, and a list gets more entries."""
    return load_text(yaml.safe_dump(merged(BASE, change)))


def merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        found = {key: merged(old[key], new[key]) if key in old else new[key] for key in new}
        return deepcopy({**old, **found})
    return [*old, *new] if isinstance(old, list) else new


def cases() -> Iterator[Any]:
    for name, (change, replaced) in CHANGES.items():
        yield pytest.param(change, replaced, id=name)
    for key, (value, replaced) in POLICIES.items():
        yield pytest.param({"policies": {key: value}}, replaced, id=f"policies.{key}")


def test_the_table_has_each_policy() -> None:
    """A new key of `policies` says here what a change of it replaces."""
    assert {each.key for each in settings() if "policies" in each.places} == POLICIES.keys()


@pytest.mark.parametrize(("change", "replaced"), list(cases()))
async def test_a_change_replaces_only_its_parts(
    change: Mapping[str, Any], replaced: set[str]
) -> None:
    """All other parts are the same objects: upstreams, targets, models, routes and their state."""
    gateway = Gateway(changed({}))
    await gateway.start()
    try:
        before = gateway._graph.parts.current
        layers = gateway._graph.parts.layers
        await gateway.reload(changed(change))
        after = gateway._graph.parts.current
        found = {
            " ".join(key)
            for key, (_, part) in before.items()
            if key not in after or after[key][1] is not part
        }
        assert replaced == found
        assert all(
            gateway._graph.parts.layers[key] is own
            for key, own in layers.items()
            if key in before and " ".join(key) not in replaced
        )
    finally:
        await gateway.stop()


async def test_kept_parts_follow_what_does_not_replace_them() -> None:
    """A kept upstream uses another timeout, a kept target another cached model; a failure none."""
    change = {
        "policies": {"timeout": "7s", "sequence_idle": "8s"},
        "models": {"other": {"cache": {}}},
    }
    bad = {"models": {"bad": {"backend": "python", "options": {"callable": "no:no"}}}}
    gateway = Gateway(changed({}))
    await gateway.start()
    try:
        before = followed(gateway)
        with pytest.raises(StartError):
            await gateway.reload(changed(merged(change, bad)))
        assert before == followed(gateway)
        await gateway.reload(changed(change))
        assert (7.0, 8.0, {"digits", "other"}) == followed(gateway)
    finally:
        await gateway.stop()


def followed(gateway: Gateway) -> tuple[float, float, set[str]]:
    built, target = gateway._graph.upstreams["a"], gateway._graph._targets["a"].service
    assert isinstance(target, PerModelService)
    times = built.members[0].withheld.longest_s, built.endpoints.affinity.idle_s
    return *times, set(target._services)
