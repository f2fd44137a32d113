"""MaxElements: rejects inferences whose inputs have too many elements."""

import math
from collections.abc import Iterator
from typing import Any

from gateway.api import (
    Calls,
    ConfigView,
    Entries,
    Finding,
    Layer,
    LayerContext,
    Metric,
    Service,
    Setting,
)
from gateway.api.tensors import Call, TooLarge, inference_of

LIMIT = Setting[int | None](
    key="max_elements",
    type=int | None,
    default=None,
    places=("policies", "route"),
    help="Largest number of elements of all inputs. Default: no limit.",
)
REJECTED = Metric("toy_rejected_total", "counter", "Inferences with too many elements.", ("route",))


class MaxElements:
    def __init__(self, inner: Entries, limit: int, at: LayerContext) -> None:
        self._inner, self._limit = inner.questions, limit
        self._rejected = at.metric(REJECTED, route=at.name)

    async def __call__(self, call: Call[Any], /) -> Any:
        request = inference_of(call)
        inputs = () if request is None else request.inputs
        found = sum(math.prod(tensor.shape or ()) for tensor in inputs)
        if found > self._limit:
            self._rejected.inc()
            raise TooLarge(f"the inputs have {found} elements; expected at most {self._limit}")
        return await self._inner(call)


def build(inner: Entries, at: LayerContext) -> Service | None:
    limit = at.setting(LIMIT)
    return None if limit is None else MaxElements(inner, limit, at)


def check(config: ConfigView) -> Iterator[Finding]:
    for path, limit in config.values(LIMIT):
        if limit is not None and limit < 1:
            yield path, f"is {limit}; expected at least 1"


LAYER = Layer(
    name="MaxElements",
    purpose="rejects large inferences, if `max_elements` is set",
    chain="route",
    build=build,
    calls=Calls.INFERENCE,
    settings=(LIMIT,),
    metrics=(REJECTED,),
    check=check,
)
