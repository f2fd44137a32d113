"""The keys of `residency`: how many models a server holds, and which; and the layers with them.

What the layers build is imported only where the file has `residency`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BeforeValidator, Field, model_validator

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.service import Service
from gateway.settings.fields import Duration, Name, Names, Size, Text, field_schema
from gateway.settings.model import Model
from gateway.settings.patterns import globs
from gateway.settings.setting import Setting
from gateway.settings.units import parse_duration

if TYPE_CHECKING:
    from gateway.residency.plan import ResidencyRules

NEVER: Final = "never"
LOCAL_NAME: Final = "gateway"
"""What the gateway is called in metrics, where others have an upstream and an endpoint."""


def _parse_idle(value: object) -> object:
    if isinstance(value, str):
        return None if value == NEVER else parse_duration(value)
    return value


IdleTime = Annotated[
    float | None,
    BeforeValidator(_parse_idle),
    field_schema("duration or `never`", "string", "10m", NEVER),
]


class ResidencyConfig(Model):
    """More models than a server has memory for: calls load them, and the least used ones leave.

    Exactly one of `models` and `memory` is needed.
    """

    models: Annotated[int, Field(ge=1)] | None = None
    """Most models at each endpoint. Default: none."""
    memory: Size | None = None
    """Memory for models at each endpoint, of which each needs its `cost`. Default: none."""
    cost: Mapping[Name, Size] = Field(default_factory=dict)
    """Memory of models, by name. Default: `default_cost`."""
    default_cost: Size | None = None
    """Memory of a model without a `cost`; required with `memory`. Default: none."""
    pinned: Names = ()
    """Models that are loaded at the start, and stay. Default: `[]`."""
    allow: Names = ("*",)
    """Patterns of models that calls may load. Others are served while loaded. Default: `["*"]`."""
    copies: Annotated[int, Field(ge=1)] | Mapping[Text, Annotated[int, Field(ge=1)]] = 1
    """Endpoints that hold a model, or numbers by patterns of names, of which the first that fits
    counts. Default: `1`."""
    loads: Annotated[int, Field(ge=1)] = 1
    """Loads at the same time at one endpoint. Default: `1`."""
    load_timeout: Duration = Field(60.0, gt=0)
    """Longest time of a load. Default: `60s`."""
    wait: Duration = Field(30.0, gt=0)
    """Longest wait of a call for its model. Default: `30s`."""
    queued: Annotated[int, Field(ge=1)] = 256
    """Calls that may wait. More are refused as overloaded. Default: `256`."""
    drain_after: Duration = 1.0
    """Wait of a call, while all models are in use, after which the least recently used one gets
    no new calls and is unloaded at the end of its running ones. Default: `1s`."""
    idle: IdleTime = None
    """Time without calls after which a model is unloaded. Default: `never`."""
    retry_failed: Duration = 10.0
    """Pause after a failed load, in which calls of the model fail. Default: `10s`."""

    @model_validator(mode="after")
    def _check_room(self) -> ResidencyConfig:
        if (self.models is None) == (self.memory is None):
            found = "neither" if self.models is None else "both"
            raise ValueError(f"expected exactly one of 'models' and 'memory', got {found}")
        if self.memory is not None and self.default_cost is None:
            raise ValueError("'memory' needs 'default_cost': the memory of models without a 'cost'")
        if self.memory is None and (self.cost or self.default_cost is not None):
            raise ValueError("'cost' and 'default_cost' belong to 'memory', and 'models' is set")
        pinned = sum(self.cost_of(name) for name in self.pinned)
        if pinned > self.room:
            raise ValueError(f"'pinned' needs {pinned}: expected at most {self.room}")
        return self

    @property
    def room(self) -> int:
        """The number of models, or of bytes."""
        return self.models or self.memory or 0

    def cost_of(self, name: str) -> int:
        """Return the part of `room` that a model needs."""
        if self.models is not None:
            return 1
        return self.cost.get(name, self.default_cost or 0)

    def rules(self) -> ResidencyRules:
        """Return what loads, unloads and waits are decided by."""
        from gateway.residency.plan import ResidencyRules  # noqa: PLC0415  # only with the key

        return ResidencyRules(
            room=self.room,
            cost=self.cost_of,
            loads=self.loads,
            drain_after_s=self.drain_after,
            idle_s=math.inf if self.idle is None else self.idle,
            retry_failed_s=self.retry_failed,
            load_timeout_s=self.load_timeout,
            wait_s=self.wait,
            queued=self.queued,
            allow=globs(self.allow),
        )

    def copies_of(self) -> Callable[[str], int]:
        """Return a function that tells how many endpoints hold a model."""
        copies = self.copies
        if isinstance(copies, int):
            return lambda _name: copies
        patterns = [(globs([pattern]), number) for pattern, number in copies.items()]
        return lambda name: next((number for fits, number in patterns if fits(name)), 1)


_HELP: Final = (
    "Models that calls load. It needs model control, such as Triton's mode `explicit`. Default: "
    "none."
)
_LOCAL_HELP: Final = (
    "Models of the gateway itself that calls load, with the keys of an upstream's. Default: "
    "none; all are loaded at the start."
)

RESIDENCY: Final[Setting[ResidencyConfig | None]] = Setting(
    key="residency",
    type=ResidencyConfig | None,
    default=None,
    help=_HELP,
    places=("upstream",),
)
LOCAL_RESIDENCY: Final[Setting[ResidencyConfig | None]] = Setting(
    key="residency",
    type=ResidencyConfig | None,
    default=None,
    help=_LOCAL_HELP,
    places=("top",),
)


def _build(inner: Entries, at: LayerContext) -> Service | None:
    config = at.setting(RESIDENCY)
    if config is None:
        return None
    from gateway.residency.layer import build  # noqa: PLC0415  # only with the key

    return build(inner, at, config)


def _build_local(inner: Entries, at: LayerContext) -> Service | None:
    if at.setting(LOCAL_RESIDENCY) is None:
        return None
    from gateway.residency.local import LocalModels  # noqa: PLC0415  # only with the key

    return at.part(LocalModels).layer(inner)


RESIDENCY_LAYER: Final = Layer(
    "Residency",
    "loads the models that calls need, and unloads others, if `residency` is set",
    "upstream",
    _build,
    settings=(RESIDENCY,),
)
LOCAL_RESIDENCY_LAYER: Final = Layer(
    "Residency",
    "loads the model when a call needs it, if the file has `residency`",
    "model",
    _build_local,
    settings=(LOCAL_RESIDENCY,),
)
