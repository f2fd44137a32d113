"""The path of a call: its route, target and times, for the layer that logs and counts the call.

That layer is outside of the router and the balancer, which record the names. The record belongs to
the task that handles the call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import msgspec

from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.waiters import Share

INFERENCES: Final = frozenset({"InferRequest", "StreamInferRequest"})
"""The kinds of calls that are inferences."""


# It holds text and numbers only, so the garbage collector has nothing to find in it.
class CallPath(msgspec.Struct, gc=False):
    """Names of the route, target and endpoint of a call; "" before they are chosen.

    Attributes:
        endpoint: The last endpoint that the call was sent to.
        attempts: How often inferences of the call were sent to an upstream.
        questions: How many other calls were sent, such as those for the metadata of its model.
        queued_s: Time in the queue of a concurrency limit or of a model's instances.
        batched_s: Time until the batch of the call was sent.
        upstream_s: Time between each request to an upstream and its response, or in the model of
            this process.
        model: The model that the client named.
        priority: Those with a higher one leave queues first.
        is_received: Whether a target has, or may have, received an inference of the call.
        is_question_received: Whether one has, or may have, received another call.
        trace_id: The trace of the call, as hexadecimal digits; "" without traces.
    """

    route: str = ""
    target: str = ""
    queued_s: float = 0.0
    batched_s: float = 0.0
    endpoint: str = ""
    attempts: int = 0
    questions: int = 0
    upstream_s: float = 0.0
    model: str = ""
    trace_id: str = ""
    priority: int = 0
    is_received: bool = False
    is_question_received: bool = False

    def sent(self, kind: type, *, is_received: bool = True) -> None:
        """Count a call of *kind* that was sent to an upstream, which may not have received it."""
        if kind.__name__ in INFERENCES:
            self.attempts += 1
            self.is_received |= is_received
        else:
            self.questions += 1
            self.is_question_received |= is_received

    def has_received(self, kind: str) -> bool:
        """Return whether a target may have received the client's call, which is of this *kind*."""
        return self.is_received or (kind not in INFERENCES and self.is_question_received)

    @property
    def requests(self) -> int:
        """How many requests were sent to upstreams for the call."""
        return self.attempts + self.questions

    def attempts_of(self, kind: str) -> int:
        """Return how often the client's call, of this *kind*, was sent to an upstream."""
        return self.attempts if kind in INFERENCES else self.questions

    def add_queue_time(self, seconds: float) -> None:
        """Add time in a queue, which ends now."""
        self.queued_s += seconds

    def add_batch_time(self, waited_s: float, seconds: float, *, is_received: bool) -> None:
        """Add the time until a batch was sent, and until its reply, which ends now."""
        self.batched_s += waited_s
        self.upstream_s += seconds
        self.is_received |= is_received


CALL_PATH: ContextVar[CallPath | None] = ContextVar("gateway_call_path", default=None)

# On the path of every call: to look up a method of an imported name takes 400 instructions.
current_path: Final[Callable[[], CallPath | None]] = CALL_PATH.get
"""Returns the record of the current call; None if it has none."""
set_path: Final = CALL_PATH.set
reset_path: Final = CALL_PATH.reset


def inherited_path(model: str = "", new_path: Callable[..., CallPath] = CallPath) -> CallPath:
    """Return the record of the task, which its caller reads; a new one if there is none."""
    path = CALL_PATH.get()
    if path is None:
        return new_path(model=model)
    path.model = model
    return path


def current_route() -> str:
    """Return the route of the current call; "" if it has no record."""
    path = CALL_PATH.get()
    return "" if path is None else path.route


def record_target(name: str) -> None:
    """Record the target of the current call, if it has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.target = name


def queue_group() -> tuple[str, str]:
    """Return the route and model of the current call."""
    path = CALL_PATH.get()
    return ("", "") if path is None else (path.route, path.model)


def queue_turn() -> tuple[str, str, Share | None]:
    """Return the route, model and client of the current call: such groups take turns in queues."""
    return (*queue_group(), CLIENT_MEMORY.get())


def queue_priority() -> int:
    """Return the priority of the current call in queues."""
    path = CALL_PATH.get()
    return 0 if path is None else path.priority


def record_priority(priority: int) -> None:
    """Set the priority of the current call in queues, if it has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.priority = priority


def record_batch(waited_s: float, seconds: float, *, is_received: bool) -> None:
    """Add the time until a batch was sent, and until its reply, if the call has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.add_batch_time(waited_s, seconds, is_received=is_received)


def record_model_time(seconds: float) -> None:
    """Add time that the current call spent in a model, if it has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.upstream_s += seconds
        path.is_received = True


@contextmanager
def without_recording() -> Iterator[None]:
    """Record nothing inside this context, for calls that the gateway makes itself."""
    token = CALL_PATH.set(None)
    try:
        yield
    finally:
        CALL_PATH.reset(token)


def record_queue_time(seconds: float) -> None:
    """Add time that the current call spent in a queue, if it has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.add_queue_time(seconds)
