"""Job: what a model may know of the request beside its inputs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

from msgspec import Struct, field

from gateway.ir.context import ModelRef, Parameter, Parameters, Sequence

_MAKING: Final = threading.Lock()


class Job(Struct):
    """One inference, as the model sees it.

    Attributes:
        model: Name and version that answer.
        id: The caller's; "" for none.
        parameters: The caller's own.
        sequence: None outside a sequence.
        outputs: Names of the outputs that are wanted.
        deadline: On the clock of `time.monotonic`; None for none.
        reply_parameters: The model may put parameters for its answer here.
        streamed: The caller takes any number of answers; otherwise it takes one.
        instance: Which of the model's instances runs it, counted from 0; no other job has it now.
        thread: The backend's own.
    """

    model: ModelRef
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    sequence: Sequence | None = None
    outputs: tuple[str, ...] = ()
    deadline: float | None = None
    reply_parameters: dict[str, Parameter] = field(default_factory=dict)
    streamed: bool = False
    instance: int = 0
    thread: asyncio.Future[Any] | None = None
    _over: bool = False
    _told: threading.Event | None = None

    @property
    def cancelled(self) -> threading.Event:
        """Set when nobody waits for the answer any more; long work should look at it.

        Made when it is first asked for: few models do, and an event costs as much as all the rest
        of a job.
        """
        with _MAKING:  # model and backend may ask at the same time, on threads of their own
            # Made before it is asked whether it is over: `cancel` does it the other way around.
            if self._told is None:
                self._told = threading.Event()
                if self._over:
                    self._told.set()
            return self._told

    def cancel(self) -> None:
        """Set `cancelled`, now and for whoever asks later."""
        self._over = True
        told = self._told
        if told is not None:
            told.set()
