"""Drained endpoints and weights that are not in the file."""

from __future__ import annotations

import pytest

from gateway.app.run.runtime_changes import RuntimeChanges, differences, runtime_document
from gateway.config.load import load_text

TEXT = """\
version: 1
listeners: [{http: 8000}]
upstreams:
  pair: {urls: ["http://a:1", "http://b:2"]}
  one: {url: "http://c:3"}
routes:
  - {name: split, targets: [{upstream: pair, weight: 3}, {upstream: one, model: m, weight: 1}]}
  - {targets: [{upstream: one}]}
"""
LOADED = load_text(TEXT)


def weights(changes: RuntimeChanges, text: str = TEXT) -> list[int]:
    """Return the weights of the first route."""
    return [target.weight for target in changes.apply(load_text(text)).config.routes[0].targets]


def test_drains_and_enables_endpoints() -> None:
    """The name of an upstream means all its endpoints."""
    changes = RuntimeChanges().with_drained(LOADED.config, "pair", drained=True)
    assert changes.drained == {"pair/a:1", "pair/b:2"}
    changes = changes.with_drained(LOADED.config, "pair/a:1", drained=False)
    assert changes.document() == {"drained": ["pair/b:2"], "weights": {}}


def test_weights_apply_to_every_configuration_with_the_route() -> None:
    """They apply to the named targets until they are reset."""
    changes = RuntimeChanges().with_weights(LOADED.config, "split", {"pair": 0})
    assert weights(changes) == [0, 1]
    changes = changes.with_weights(LOADED.config, "split", {"one/m": 9})
    assert weights(changes) == [0, 9]
    assert weights(changes, TEXT.replace("weight: 3", "weight: 7")) == [0, 9]
    assert weights(changes, TEXT.replace("name: split", "name: other")) == [3, 1]
    only = TEXT.replace(", {upstream: one, model: m, weight: 1}", "")
    assert weights(changes, only) == [3]
    assert weights(changes.with_weights(LOADED.config, "split", None)) == [3, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "unknown upstream 'missing'; expected one of one, pair"),
        ("pair/c:3", "unknown endpoint of upstream 'pair' 'c:3'; expected one of a:1, b:2"),
    ],
)
def test_unknown_endpoints_are_rejected(name: str, message: str) -> None:
    """The error lists the known ones."""
    with pytest.raises(LookupError) as raised:
        RuntimeChanges().with_drained(LOADED.config, name, drained=True)
    assert raised.value.args[0] == message


@pytest.mark.parametrize(
    ("route", "changed", "message"),
    [
        ("missing", {"pair": 1}, "unknown route with targets 'missing'; expected one of route-2"),
        ("split", {"missing": 1}, "unknown target of route 'split' 'missing'; expected one of"),
        ("split", {"pair": 0, "one/m": 0}, "all targets of route 'split' would have weight 0"),
    ],
)
def test_invalid_weights_are_rejected(route: str, changed: dict[str, int], message: str) -> None:
    """Nothing changes, and the error has the expected values."""
    with pytest.raises((LookupError, ValueError)) as raised:
        RuntimeChanges().with_weights(LOADED.config, route, changed)
    assert str(raised.value.args[0]).startswith(message)


def test_drains_resolved_addresses() -> None:
    """An upstream with `resolve: all` has endpoints that the configuration does not name."""
    config = load_text(TEXT.replace('url: "http://c:3"', 'url: "http://c:3", resolve: all')).config
    changes = RuntimeChanges().with_drained(config, "one/10.0.0.1:3", drained=True)
    assert changes.drained == {"one/10.0.0.1:3"}
    assert changes.with_drained(config, "one/10.0.0.1:3", drained=False).drained == frozenset()
    changes = changes.with_drained(config, "one", drained=True)
    assert changes.drained == {"one/10.0.0.1:3", "one/*"}
    with pytest.raises(ValueError, match="all of upstream 'one' is drained; enable 'one' first"):
        changes.with_drained(config, "one/10.0.0.1:3", drained=False)
    assert changes.with_drained(config, "one", drained=False).drained == frozenset()


def test_differences_to_the_file_have_both_values() -> None:
    """Each is a line with the command that ends it; what the file no longer has is no difference."""
    changes = RuntimeChanges().with_drained(LOADED.config, "pair/a:1", drained=True)
    changes = changes.with_weights(LOADED.config, "split", {"pair": 0, "one/m": 1})
    found = differences(changes, LOADED.config)
    assert found == {
        "drained": ["pair/a:1"],
        "weights": {"split": {"pair": {"now": 0, "file": 3}}},
    }
    assert runtime_document(found)["lines"] == [
        "pair/a:1 is drained ('gateway upstream enable pair/a:1' ends this)",
        "route split: pair=0, not pair=3 as in the file ('gateway route reset split')",
    ]
    other = TEXT.replace("http://a:1", "http://c:1").replace("name: split", "name: other")
    assert {} == differences(changes, load_text(other).config)
    assert {} == differences(RuntimeChanges(), LOADED.config)
