"""Models that do nothing: they return the same arrays for any request, on the gateway's loop."""

from collections.abc import Awaitable, Callable

import numpy as np

from benchmarks import messages
from benchmarks.messages import Case, image, signature, small
from gateway.backends.examples import Arrays

MODULE = "benchmarks.noop"


def _constant(outputs: messages.Arrays) -> Callable[[Arrays], Awaitable[Arrays]]:
    answer = {name: np.asarray(array) for name, array in outputs.items()}

    async def model(_inputs: Arrays) -> Arrays:
        return answer

    return model


add_sub = _constant(small().outputs)
sum_and_empty = _constant(image().outputs)


def models(case: Case) -> dict[str, object]:
    """Return the section `models` for the model of the case, which runs in the gateway."""
    options = {"callable": f"{MODULE}:{case.model}"}
    return {case.model: {"backend": "python", "options": options, "signature": signature(case)}}
