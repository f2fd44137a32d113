"""The layers of rolling loads. What they build is imported only with `rolling_load`."""

from typing import Final

from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.routing.rolling.settings import ROLLING_LOAD, check_rolling_loads
from gateway.service import Service
from gateway.telemetry.model_calls import ModelCalls


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
