"""The layer and the key of adaptive concurrency; `overload.py` has what they build."""

from typing import Annotated, Any, Final, Literal

from pydantic import WithJsonSchema

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.policies.limits.adaptive.overload import OverloadLimit
from gateway.service import Service
from gateway.settings.fields import Off
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.telemetry.metrics import Metrics


class AdaptiveConcurrencyConfig(Model):
    """The long form of `on_overload`, which has no keys of its own any more."""

    # Retired keys, which have no effect; see `gateway.config.retired`.
    algorithm: Any = None
    min: Any = None
    max: Any = None
    latency_percentile: Any = None
    sample: Any = None
    min_rtt_interval: Any = None
    jitter: Any = None


ADAPTIVE_CONCURRENCY: Final = Setting[AdaptiveConcurrencyConfig | Literal["on_overload", False]](
    key="adaptive_concurrency",
    type=Annotated[
        AdaptiveConcurrencyConfig | Literal["on_overload"] | Off,
        WithJsonSchema({"enum": ["on_overload", False]}),
    ],
    default=False,
    help=(
        "A limit on the inferences in flight that follows the latency of the upstream, in each "
        "worker. Each route and model has one only while its calls in flight grow and do not end "
        "faster. Calls wait, and are refused when 100 wait. Up to 48 calls in flight, sequences "
        "and streams are never limited. Default: `false`, which is no such limit."
    ),
    places=("upstream",),
)


def _build(inner: Entries, at: LayerContext) -> Service | None:
    if at.setting(ADAPTIVE_CONCURRENCY) is False:
        return None
    layer = OverloadLimit(inner.questions, name=at.name)
    at.part(Metrics).concurrency_limit(at.name, lambda: layer.limit)
    return layer


ADAPTIVE_LAYER: Final = Layer(
    "AdaptiveConcurrency",
    "limits inferences by the latency of the upstream",
    "upstream",
    _build,
    settings=(ADAPTIVE_CONCURRENCY,),
)
