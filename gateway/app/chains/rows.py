"""Rows of the table of layers that are no layers, and builders that need one part."""

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeVar

from gateway.api.layer import Entries, Layer, LayerContext, no_findings
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.setting import Setting

P = TypeVar("P")

Build = Callable[[Entries, LayerContext], Service | None]

PACKAGES: Final = "packages"
"""Where the layers of installed packages come."""

READERS: Final = "readers"
"""Where those come that read tensors, in a chain that has another place for them."""


class End(NamedTuple):
    """What the innermost layer of a chain calls.

    Attributes:
        name: The name of the class.
        purpose: A description for `gateway explain --layers`.
        settings: Its keys in the configuration file.
        check: Yields what is wrong with its keys, beyond their types.
    """

    name: str
    purpose: str
    settings: tuple[Setting[Any], ...] = ()
    check: Callable[[ConfigView], Iterator[Finding]] = no_findings


Row = Layer | End | Literal["packages", "readers"]


def with_part(kind: type[P], build: Callable[[Entries, P], Service | None]) -> Build:
    """Return the builder of a layer that needs one part of its chain."""
    return lambda inner, at: build(inner, at.part(kind))


def always(layer: Callable[..., Any]) -> Build:
    """Return the builder of a layer that every chain has, and that inference passes."""
    return lambda inner, _: layer(inner.questions, inference=inner.inference)


def for_questions(layer: Callable[[Service], Any]) -> Build:
    """Return the builder of a layer that every chain has, for questions."""
    return lambda inner, _: layer(inner.questions)
