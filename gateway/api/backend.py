"""Backend: a model that runs in the gateway's own process, and the Job of each inference.

`gateway.backends.base.BackendService` runs it: threads, queue, checks.
"""

import abc
import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Final

import numpy.typing as npt
from msgspec import Struct, field

from gateway.ir.context import CallSequence, ModelRef, Parameter, Parameters
from gateway.ir.metadata import ModelMetadata

Inputs = Mapping[str, npt.NDArray[Any]]
Arrays = Mapping[str, npt.NDArray[Any]]

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


class Backend(abc.ABC):
    """One model. A subclass has one of `infer`, `run` and `run_stream`.

    `load`, `unload` and `infer` may block, because they run on threads.

    Attributes:
        decoupled: Whether one request may have any number of replies; then it has `run_stream`.
    """

    decoupled: bool = False

    @property
    @abc.abstractmethod
    def metadata(self) -> ModelMetadata:
        """The model's signature; read after `load`."""

    @abc.abstractmethod
    def load(self) -> None:
        """Load the model; may block.

        Raises:
            Exception: The model cannot be loaded.
        """

    @abc.abstractmethod
    def unload(self) -> None:
        """Free what `load` allocated; may block; idempotent."""

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Return the model's outputs for validated inputs; may block."""
        raise NotImplementedError(f"{type(self).__name__} has no 'infer'")

    def run(self, inputs: Inputs, job: Job, /) -> Awaitable[Arrays]:
        """Return the outputs, on the event loop; without it `infer` runs on a thread."""
        raise NotImplementedError(f"{type(self).__name__} has no 'run'")

    def run_stream(self, inputs: Inputs, job: Job, /) -> AsyncIterator[Arrays]:
        """Iterate over the outputs of each reply."""
        raise NotImplementedError(f"{type(self).__name__} has no 'run_stream'")
