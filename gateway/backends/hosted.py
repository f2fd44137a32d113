"""HostedBackend: runs a `gateway.api.Backend`, which has no threads and no queue of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gateway.api.backend import Arrays, Backend, Inputs, Job
from gateway.api.model_spec import ModelSpec
from gateway.backends.base import BackendService, LoadError
from gateway.backends.versions import Versions
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata
from gateway.telemetry.faults import FAULTS


def versions_of(found: Any, spec: ModelSpec) -> Versions:
    """Return the versions of a model, without loading them.

    Args:
        found: Of the registry: a function of the spec that returns versions or a backend, or a
            class of backends, which has the spec as its argument.
        spec: The configuration of the model.

    Raises:
        ValueError: It returns something else.
    """
    made = found(spec)
    if isinstance(made, Versions):
        return made
    if isinstance(made, BackendService):
        return Versions(spec.name, [made])
    if isinstance(made, Backend):
        return Versions(spec.name, [HostedBackend(spec.name, made, **spec.pool_settings)])
    kind = type(made).__name__
    raise ValueError(f"a backend made a {kind}; expected a gateway.api.Backend")


class HostedBackend(BackendService):
    """A backend of a package, with threads, a queue and checks around it.

    Args:
        name: The model's name.
        backend: The model that the package has made.
        settings: `instances` and `queue` of `BackendService`.
    """

    def __init__(self, name: str, backend: Backend, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._backend = backend
        self.decoupled = backend.decoupled
        self._runs_on_loop = _has_own(backend, "run")
        self._streams = _has_own(backend, "run_stream")

    @property
    def metadata(self) -> ModelMetadata:
        """The model's signature."""
        found = self._backend.metadata
        return found.changed(name=self.model.name, versions=(self.model.version,))

    def load(self) -> None:
        """Load the model.

        Raises:
            LoadError: The backend raised something.
        """
        try:
            self._backend.load()
        except GatewayError:
            raise
        except FAULTS as error:
            text = f"model {str(self.model)!r} cannot be loaded: {type(error).__name__}: {error}"
            raise LoadError(text, model=self.model) from error

    def unload(self) -> None:
        """Free what `load` allocated."""
        self._backend.unload()

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Return the model's outputs."""
        return self._backend.infer(inputs, job)

    def run(self, inputs: Inputs, job: Job, /) -> Awaitable[Arrays]:
        """Return the outputs, on the event loop if the backend has `run`."""
        return self._backend.run(inputs, job) if self._runs_on_loop else super().run(inputs, job)

    def run_stream(self, inputs: Inputs, job: Job, /) -> AsyncIterator[Arrays]:
        """Iterate over the outputs of each reply."""
        if self._streams:
            return self._backend.run_stream(inputs, job)
        return super().run_stream(inputs, job)


def _has_own(backend: Backend, name: str) -> bool:
    method: Callable[..., Any] = getattr(type(backend), name)
    return method is not getattr(Backend, name)
