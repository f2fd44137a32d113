"""Options of TensorFlow Serving: their values, and the paths that they add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.app.listen.path_ownership import owned_paths, public_paths
from gateway.config.load import load_text
from gateway.protocols.tfs.declarations import read_declaration
from gateway.protocols.tfs.http.paths import claims
from gateway.protocols.tfs.options import check_options
from gateway.wire.options import OptionError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dialect": "v3"}, "dialect"),
        ({"nonfinite": "x"}, "nonfinite"),
        ({"vertex": {"predict": "predict"}}, "vertex.predict"),
        ({"vertex": {"other": "/x"}}, "other"),
        ({"nothing": 1}, "nothing"),
    ],
)
def test_wrong_options_are_named(options: Mapping[str, Any], text: str) -> None:
    """The error has the key."""
    with pytest.raises(ValueError, match=text):
        check_options(options)


def test_options_add_whole_paths() -> None:
    """Vertex AI has two, and KServe's clients ask for the root."""
    for options, expected in (
        ({}, []),
        ({"dialect": "kserve"}, ["/"]),
        ({"vertex": {"predict": "/p"}}, ["/p", "/health"]),
        ({"vertex": {"predict": "/", "health": "/"}, "root": True}, ["/"]),
    ):
        assert expected == [each.path for each in claims(options) if each.is_whole]


def test_the_health_route_needs_no_credential() -> None:
    """The predict route does."""
    text = (
        'version: 1\nlisteners: [{http: "127.0.0.1:0", options: '
        "{tfs: {vertex: {predict: /p, health: /h}}}}]\n"
    )
    (listener,) = load_text(text).config.listeners
    found = public_paths(listener, owned_paths(listener))
    assert "/h" in found
    assert "/p" not in found


@pytest.mark.parametrize(
    ("declared", "path"),
    [
        ({"labels": {"stable": "x"}}, ("labels",)),
        ({"bytes": "raw"}, ("bytes",)),
        ({"signatures": {"s": {"method": "explain"}}}, ("signatures", "s", "method")),
        ({"signatures": {"s": {"other": 1}}}, ("signatures", "s", "other")),
    ],
)
def test_wrong_declarations_are_named(declared: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """The error has the keys that lead to the value."""
    with pytest.raises(OptionError) as caught:
        read_declaration(declared, lambda _: "")
    assert path == caught.value.path
