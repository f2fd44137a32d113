"""RejectSequences: rejects sequences for models that run in several worker processes.

An in-process model keeps the state of a sequence in its process. With several workers, requests of
one sequence may reach different processes.
"""

from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.calls import Call, InferRequest, StreamInferRequest
from gateway.ir.errors import Unsupported
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ModelProcesses:
    """The number of processes that a model with a state runs in; 1 for one without a state."""

    count: int = 1


class RejectSequences:
    """Rejects requests of a sequence, and passes all others.

    Args:
        inner: A model that may be stateful.
        workers: Number of worker processes, for the error.
    """

    def __init__(self, inner: Service, workers: int) -> None:
        self._inner = inner
        self._workers = workers

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*.

        Raises:
            Unsupported: The call belongs to a sequence.
        """
        request = call.request if isinstance(call, StreamInferRequest) else call
        if isinstance(request, InferRequest) and request.sequence is not None:
            return self._reject(call)
        return self._inner(call)

    async def _reject(self, call: Call[R]) -> R:
        raise Unsupported(
            f"sequences need a single process, and model {str(call.model)!r} runs in each of "
            f"{self._workers} workers (set 'workers: 1')",
            model=call.model,
        )


def _build(inner: Entries, at: LayerContext) -> Service | None:
    count = at.part(ModelProcesses).count
    return RejectSequences(inner.questions, count) if count > 1 else None


LAYER: Final = Layer(
    "RejectSequences",
    "rejects sequences, whose requests would go to different workers",
    "model",
    _build,
)
