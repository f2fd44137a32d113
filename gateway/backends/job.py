"""Job: the properties of a request, besides its inputs, that a model may use."""

import asyncio
import threading
from typing import Any, Final

from msgspec import Struct, field

from gateway.ir.context import CallSequence, ModelRef, Parameter, Parameters

_EVENT_LOCK: Final = threading.Lock()


class Job(Struct):
    """One inference, as the model sees it.

    Attributes:
        model: Name and version of the model.
        id: The caller's request id; "" for none.
        parameters: The caller's parameters.
        sequence: None outside a sequence.
        outputs: Names of the requested outputs.
        deadline: On the clock of `time.monotonic`; None for none.
        reply_parameters: The model may add parameters of its reply here.
        streamed: Whether the caller accepts any number of replies, or exactly one.
        instance: The instance that runs the job, from 0; it runs no other job at the same time.
        thread: Used by the backend.
    """

    model: ModelRef
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    sequence: CallSequence | None = None
    outputs: tuple[str, ...] = ()
    deadline: float | None = None
    reply_parameters: dict[str, Parameter] = field(default_factory=dict)
    streamed: bool = False
    instance: int = 0
    thread: asyncio.Future[Any] | None = None
    _is_cancelled: bool = False
    _event: threading.Event | None = None

    @property
    def cancelled(self) -> threading.Event:
        """An event that is set when the caller no longer waits; long work should check it.

        It is created on first use, because few models use it and an event costs as much as the
        rest of a job.
        """
        with _EVENT_LOCK:  # the model and the backend may run in different threads
            # The order matters: `cancel` sets the flag before it reads the event.
            if self._event is None:
                self._event = threading.Event()
                if self._is_cancelled:
                    self._event.set()
            return self._event

    def cancel(self) -> None:
        """Set `cancelled`."""
        self._is_cancelled = True
        event = self._event
        if event is not None:
            event.set()
