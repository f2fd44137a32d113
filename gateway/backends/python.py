"""Python callables as models: functions, coroutines, generators and callable objects.

The argument of a model is a dict of numpy arrays, and a `Job` if it has two parameters; its result
is a dict of arrays. A generator yields several replies. The attributes `inputs` and `outputs` of
the callable declare its tensors, or else the configuration, which overrides them.

Input arrays may be read-only and unaligned. BYTES are object arrays of `bytes`, and BF16 are uint16
bit patterns. A model raises `gateway.ir.errors.InvalidRequest` to reject a request.
"""

import importlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gateway.api.backend import Arrays
from gateway.api.model_spec import ModelSpec
from gateway.backends.base import Backend, Inputs, Job, LoadError
from gateway.backends.versions import Versions
from gateway.ir.bodies.streams import close_stream
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.telemetry.faults import FAULTS

_END = object()


class PythonBackend(Backend):
    """A callable as a model.

    Args:
        name: The model's name.
        source: The callable, or its dotted name, "package.module:attribute". A class is called with
            *options* when the model is loaded, once per instance: each object runs one inference
            at a time, and all requests of a sequence. Unloading calls its `close` method if it has
            one. The instances share any other callable.
        version: A number.
        inputs: The inputs; None for those that the callable declares.
        outputs: The outputs; None for those that the callable declares.
        options: Keyword arguments of a class.
        max_batch_size: The largest batch; 0 for a model without a batch axis.
        settings: `instances` and `queue` of `Backend`.
    """

    def __init__(
        self,
        name: str,
        source: str | Callable[..., Any],
        version: str = "1",
        *,
        inputs: Sequence[TensorMetadata] | None = None,
        outputs: Sequence[TensorMetadata] | None = None,
        options: Mapping[str, Any] | None = None,
        max_batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(name, version, **settings)
        self._source = source
        self._inputs = inputs
        self._outputs = outputs
        self._options = dict(options or {})
        self._max_batch_size = max_batch_size
        self._models: list[Callable[..., Any]] = []
        self._has_job_parameter = False
        self._is_async = False
        self._declared: ModelMetadata | None = None

    @property
    def metadata(self) -> ModelMetadata:
        """The declared signature."""
        if self._declared is None:
            raise self._not_ready()
        return self._declared

    def load(self) -> None:
        """Import the callable and read its declaration.

        Raises:
            LoadError: It cannot be imported, created or called, or declares no tensors.
        """
        models = self._instantiate(self._import())
        model = models[0]
        if not callable(model):
            raise self._unloadable(f"is a {type(model).__name__}, which is not callable")
        function = model if inspect.isroutine(model) else type(model).__call__
        is_async_generator = inspect.isasyncgenfunction(function)
        self._has_job_parameter = _positional_count(model) > 1
        self._is_async = is_async_generator or inspect.iscoroutinefunction(function)
        self.decoupled = is_async_generator or inspect.isgeneratorfunction(function)
        self._declared = ModelMetadata(
            name=self.model.name,
            versions=(self.model.version,),
            platform="python",
            inputs=self._tensors("inputs", self._inputs, model),
            outputs=self._tensors("outputs", self._outputs, model),
            max_batch_size=self._max_batch_size,
        )
        self._models = models

    def check_here(self) -> None:
        """Import the callable. Raises LoadError."""
        self._import()

    def unload(self) -> None:
        """Delete the model, and call its `close` method if it has one."""
        models, self._models = self._models, []
        _close(models)

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Call a synchronous model that is not a generator."""
        outputs: Arrays = self._call(inputs, job)
        return outputs

    def run(self, inputs: Inputs, job: Job, /) -> Awaitable[Arrays]:
        """Call the model: a coroutine function on the event loop, any other on a thread."""
        if self._is_async:
            outputs: Awaitable[Arrays] = self._call(inputs, job)
            return outputs
        return super().run(inputs, job)

    def run_stream(self, inputs: Inputs, job: Job, /) -> AsyncIterator[Arrays]:
        """Iterate over the replies of a generator; other models have one reply."""
        if not self.decoupled:
            return super().run_stream(inputs, job)
        if self._is_async:
            return self._iterate_async(self._call(inputs, job))
        return self._iterate_on_thread(self._call(inputs, job), job)

    async def _iterate_async(self, generator: AsyncIterator[Any]) -> AsyncIterator[Arrays]:
        try:
            async for outputs in generator:
                yield outputs
        finally:
            await close_stream(generator)

    async def _iterate_on_thread(self, generator: Iterator[Any], job: Job) -> AsyncIterator[Arrays]:
        """Run each step of the generator, and its end, on a thread."""
        try:
            while True:
                outputs: Any = await self.on_thread(lambda: next(generator, _END), job)
                if outputs is _END:
                    return
                yield outputs
        finally:
            # A thread that still runs it after the caller left has the last reference to it; so
            # has a model that was stopped. In both cases Python closes the generator.
            if self._threads is not None and (job.thread is None or job.thread.done()):
                await self.on_thread(generator.close)  # type: ignore[attr-defined]  # a generator

    def _call(self, inputs: Inputs, job: Job) -> Any:
        if not self._models:
            raise self._not_ready()
        model = self._models[job.instance % len(self._models)]
        return model(inputs, job) if self._has_job_parameter else model(inputs)

    def _import(self) -> Any:
        if not isinstance(self._source, str):
            return self._source
        module_name, colon, path = self._source.partition(":")
        if not colon:
            raise self._unloadable("is not a dotted name; expected 'package.module:attribute'")
        try:
            value: Any = importlib.import_module(module_name)
        except FAULTS as error:
            raise self._unloadable(f"cannot be imported: {_error_text(error)}") from error
        for part in path.split("."):
            try:
                value = getattr(value, part)
            except AttributeError as error:
                raise self._unloadable(f"cannot be found: {_error_text(error)}") from error
        return value

    def _instantiate(self, source: Any) -> list[Any]:
        """Return one object of a class per instance, or the callable itself."""
        if not inspect.isclass(source):
            return [source]
        models: list[Any] = []
        try:
            while len(models) < self._instances:
                models.append(source(**self._options))
        except FAULTS as error:
            _close(models)
            raise self._unloadable(f"cannot be created: {_error_text(error)}") from error
        return models

    def _tensors(
        self, kind: str, configured: Sequence[TensorMetadata] | None, model: Any
    ) -> tuple[TensorMetadata, ...]:
        declared = getattr(model, kind, None) if configured is None else configured
        if declared is None:
            raise self._unloadable(
                f"does not declare its {kind}; add an attribute {kind!r}, "
                f"or set {kind!r} in its signature in the configuration"
            )
        return tuple(declared)

    def _unloadable(self, text: str) -> LoadError:
        source = self._source if isinstance(self._source, str) else repr(self._source)
        return LoadError(
            f"model {str(self.model)!r}: Python model {source!r} {text}", model=self.model
        )


def declares(
    *, inputs: Sequence[TensorMetadata], outputs: Sequence[TensorMetadata]
) -> Callable[[Any], Any]:
    """Return a decorator that declares the tensors of a function or class."""

    def declare(model: Any) -> Any:
        model.inputs, model.outputs = tuple(inputs), tuple(outputs)
        return model

    return declare


def _close(models: Sequence[Any]) -> None:
    """Call `close` of each model that has one, even if another one fails."""
    with ExitStack() as closing:
        for model in models:
            close = None if inspect.isroutine(model) else getattr(model, "close", None)
            if close is not None:
                closing.callback(close)


def _positional_count(model: Callable[..., Any]) -> int:
    """Return the number of required positional parameters; 1 if it is not known."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def _error_text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def from_spec(spec: ModelSpec) -> Versions:
    """Return the model of *spec*.

    Options: `callable` ("package.module:attribute", required), `version`, `instances`, `queue`,
    `max_batch_size`, and `arguments`, a mapping for a class.

    Raises:
        ValueError: An option is invalid or missing.
    """
    spec.only("callable", "version", "instances", "queue", "max_batch_size", "arguments")
    source = spec.options.get("callable")
    if not isinstance(source, str) or ":" not in source:
        raise ValueError(
            f"model {spec.name!r}: option 'callable' is {source!r}; expected package.module:name"
        )
    signature = spec.signature
    model = PythonBackend(
        spec.name,
        source,
        str(spec.options.get("version", "1")),
        inputs=None if signature is None else signature.inputs,
        outputs=None if signature is None else signature.outputs,
        options=spec.options.get("arguments"),
        max_batch_size=spec.max_batch_size,
        **spec.pool_settings,
    )
    return Versions(spec.name, [model])
