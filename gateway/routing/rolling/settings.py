"""The keys of `rolling_load`, its layers, and the port by which recorded calls try a load.

What the layers build is imported only with `rolling_load`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from pydantic import Field

from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.fields import Duration, InputFile, Name, Names
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.telemetry.usage.model_calls import ModelCalls


class WarmUpConfig(Model):
    """Recorded calls that a loaded model gets before those of clients."""

    capture: InputFile
    """Directory of the capture."""
    calls: Annotated[int, Field(ge=1)] = 50
    """Most calls of the model. Default: `50`."""
    timeout: Duration = Field(30.0, gt=0)
    """Longest time of all of them, after which the load fails. Default: `30s`."""


class RollingLoadConfig(Model):
    """Loads that clients request, at one endpoint after the other. The first failure stops it."""

    at_once: Annotated[int, Field(ge=1)] = 1
    """Endpoints that load the model at the same time. Default: `1`."""
    drain: Duration = 30.0
    """Longest wait for the model's running calls before a load. Default: `30s`."""
    min_ready: Annotated[int, Field(ge=0)] = 1
    """Endpoints that keep serving the model. A load that leaves fewer fails. Default: `1`."""
    warm_up: WarmUpConfig | None = None
    """Recorded calls that the loaded model gets first. Default: none."""
    compare: Name | None = None
    """Migration whose rules compare the recorded replies with the new ones. Default: none, which
    compares exactly."""
    fail_if: Names = ("errors>0", "mismatch>0.1%")
    """Conditions on the replies of `warm_up`, as of `gateway replay`; any of them fails the
    load. Default: `["errors>0", "mismatch>0.1%"]`."""


ROLLING_LOAD: Final[Setting[RollingLoadConfig | None]] = Setting(
    key="rolling_load",
    type=RollingLoadConfig | None,
    default=None,
    help="How loads that clients request reach the endpoints. Default: none; all load at the "
    "same time.",
    places=("upstream",),
)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What recorded calls show of a loaded model.

    Attributes:
        calls: The number of calls that were sent.
        failures: Why the load fails; empty if it does not.
    """

    calls: int
    failures: tuple[str, ...] = ()


class Trial(Protocol):
    """Sends recorded calls of a model to a server that has loaded it, and compares the replies."""

    async def __call__(
        self, config: ConfigView, rules: RollingLoadConfig, service: Service, model: str, /
    ) -> TrialResult:
        """Return what the calls show.

        Raises:
            OSError: The capture cannot be read.
            LookupError: The migration does not exist.
            ValueError: The capture or a condition is invalid.
        """


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """The part by which a rolling load finds recorded calls.

    Attributes:
        config: The configuration.
        find: Returns what sends them; it is imported on use.
    """

    config: ConfigView
    find: Callable[[], Trial]


def check_rolling_loads(config: ConfigView) -> Iterator[Finding]:
    """Yield the keys that need others."""
    for path, rules in config.values(ROLLING_LOAD):
        if rules is not None and rules.compare is not None and rules.warm_up is None:
            yield (*path, "compare"), "needs 'warm_up', whose calls have the replies to compare"


def _build(inner: Entries, at: LayerContext) -> Service | None:
    rules = at.setting(ROLLING_LOAD)
    if rules is None:
        return None
    from gateway.routing.rolling.layer import build  # noqa: PLC0415  # only with the key

    return build(inner, at, rules)


def _build_count(inner: Entries, at: LayerContext) -> Service | None:
    calls = at.part(ModelCalls)
    if at.setting(ROLLING_LOAD) is None and not calls.is_published:
        return None
    from gateway.routing.rolling.model_calls import CountModelCalls  # noqa: PLC0415  # only here

    return CountModelCalls(inner, calls, at.name)


ROLLING_LOAD_LAYER: Final = Layer(
    "RollingLoad",
    "loads a model at one endpoint after the other, if `rolling_load` is set",
    "upstream",
    _build,
    Calls.QUESTIONS,
    settings=(ROLLING_LOAD,),
    check=check_rolling_loads,
)
MODEL_CALLS_LAYER: Final = Layer(
    "CountModelCalls",
    "counts running calls by model, if `rolling_load` or `telemetry.metrics.compat` is set",
    "endpoint",
    _build_count,
    Calls.INFERENCE,
)
