"""MaxElements: rejects inferences whose inputs have too many elements."""

import math
from collections.abc import Iterator
from typing import Any

from gateway import api
from gateway.api.tensors import Call, TooLarge, inference_of

LIMIT = api.Setting[int | None](
    key="max_elements",
    type=int | None,
    default=None,
    places=("policies", "route"),
    help="Largest number of elements of all inputs. Default: no limit.",
)
REJECTED = api.Metric("toy_rejected_total", "counter", "Inferences that are too large.", ("route",))


class MaxElements:
    def __init__(self, inner: api.Entries, limit: int, at: api.LayerContext) -> None:
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


def build(inner: api.Entries, at: api.LayerContext) -> api.Service | None:
    limit = at.setting(LIMIT)
    return None if limit is None else MaxElements(inner, limit, at)


def check(config: api.ConfigView) -> Iterator[api.Finding]:
    for path, limit in config.values(LIMIT):
        if limit is not None and limit < 1:
            yield path, f"is {limit}; expected at least 1"


LAYER = api.Layer(
    name="MaxElements",
    purpose="rejects large inferences, if `max_elements` is set",
    chain="route",
    build=build,
    calls=api.Calls.INFERENCE,
    needs=api.Reads.SHAPES,
    settings=(LIMIT,),
    metrics=(REJECTED,),
    check=check,
)
