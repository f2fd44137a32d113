"""Python callables as models: functions, coroutines, generators, or objects that can be called.

A model is given a dict of numpy arrays, and a `Job` if it takes two arguments, and returns a dict
of arrays. A generator gives several answers. What it takes and gives is declared: by the attributes
`inputs` and `outputs` of the callable, or in the configuration, which wins.

Arrays given to a model may be read-only and unaligned; BYTES are object arrays of `bytes`, BF16 is
uint16 bit patterns. A model refuses a request by raising `gateway.ir.errors.InvalidRequest`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gateway.backends.base import Backend, Inputs, Job, LoadError
from gateway.backends.model_spec import ModelSpec
from gateway.backends.validation import Arrays
from gateway.backends.versions import Versions
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.streams import close_stream

_END = object()


class PythonBackend(Backend):
    """A callable as a model.

    Args:
        name: Of the model.
        source: The callable, or its dotted name, "package.module:attribute". A class is called with
            *options* when the model is loaded, once for each instance, so that no two inferences
            run in one object at a time; the requests of a sequence come to the same one. Its
            `close`, where it has one, is called when the model is unloaded. Other callables are
            shared by the instances.
        version: Of the model; a number.
        inputs: What it takes; None for what it declares itself.
        outputs: What it gives; None likewise.
        options: For a class.
        max_batch_size: See `ModelMetadata`.
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
        self._takes_job = False
        self._asynchronous = False
        self._declared: ModelMetadata | None = None

    @property
    def metadata(self) -> ModelMetadata:
        """The model's signature, as declared."""
        if self._declared is None:
            raise self._not_ready()
        return self._declared

    def load(self) -> None:
        """Find the callable and what it declares.

        Raises:
            LoadError: It cannot be imported, made or called, or declares nothing.
        """
        models = self._made(self._found())
        model = models[0]
        if not callable(model):
            raise self._unloadable(f"is a {type(model).__name__}, which cannot be called")
        # An object's kind is that of its __call__.
        function = model if inspect.isroutine(model) else type(model).__call__
        self._takes_job = _positional(model) > 1
        self._asynchronous = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(
            function
        )
        self.decoupled = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(
            function
        )
        self._declared = ModelMetadata(
            name=self.model.name,
            versions=(self.model.version,),
            platform="python",
            inputs=self._tensors("inputs", self._inputs, model),
            outputs=self._tensors("outputs", self._outputs, model),
            max_batch_size=self._max_batch_size,
        )
        self._models = models

    def unload(self) -> None:
        """Let go of the model, and call its `close` where it has one."""
        models, self._models = self._models, []
        _close(models)

    def infer(self, inputs: Inputs, job: Job, /) -> Arrays:
        """Call a model that is neither asynchronous nor a generator."""
        answer: Arrays = self._call(inputs, job)
        return answer

    def run(self, inputs: Inputs, job: Job, /) -> Awaitable[Arrays]:
        """Call the model: a coroutine on the event loop, anything else on a thread."""
        if self._asynchronous:
            answer: Awaitable[Arrays] = self._call(inputs, job)
            return answer
        return super().run(inputs, job)

    def answers(self, inputs: Inputs, job: Job, /) -> AsyncIterator[Arrays]:
        """Iterate over the answers of a generator; one from a model that is none."""
        if not self.decoupled:
            return super().answers(inputs, job)
        if self._asynchronous:
            return self._awaited(self._call(inputs, job))
        return self._stepped(self._call(inputs, job), job)

    async def _awaited(self, generator: AsyncIterator[Any]) -> AsyncIterator[Arrays]:
        try:
            async for answer in generator:
                yield answer
        finally:
            await close_stream(generator)

    async def _stepped(self, generator: Iterator[Any], job: Job) -> AsyncIterator[Arrays]:
        """Take each answer on a thread, and close the generator on one."""
        try:
            while True:
                answer: Any = await self.on_thread(lambda: next(generator, _END), job)
                if answer is _END:
                    return
                yield answer
        finally:
            # A thread that still runs it, because the caller left, drops the last reference to it.
            # So does a model that has been stopped meanwhile.
            if self.has_threads and (job.thread is None or job.thread.done()):
                await self.on_thread(generator.close)  # type: ignore[attr-defined]  # a generator

    def _call(self, inputs: Inputs, job: Job) -> Any:
        if not self._models:
            raise self._not_ready()
        model = self._models[job.instance % len(self._models)]
        return model(inputs, job) if self._takes_job else model(inputs)

    def _found(self) -> Any:
        if not isinstance(self._source, str):
            return self._source
        module_name, colon, path = self._source.partition(":")
        if not colon:
            raise self._unloadable("is not of the form 'package.module:attribute'")
        try:
            found: Any = importlib.import_module(module_name)
        except Exception as error:
            raise self._unloadable(f"cannot be imported: {_said(error)}") from error
        for part in path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError as error:
                raise self._unloadable(f"cannot be found: {_said(error)}") from error
        return found

    def _made(self, found: Any) -> list[Any]:
        """Return an object of a class for each instance; one for all of anything else."""
        if not inspect.isclass(found):
            return [found]
        made: list[Any] = []
        try:
            while len(made) < self._instances:
                made.append(found(**self._options))
        except Exception as error:
            _close(made)
            raise self._unloadable(f"cannot be made: {_said(error)}") from error
        return made

    def _tensors(
        self, kind: str, given: Sequence[TensorMetadata] | None, model: Any
    ) -> tuple[TensorMetadata, ...]:
        declared = getattr(model, kind, None) if given is None else given
        if declared is None:
            raise self._unloadable(
                f"does not declare its {kind}: give it an attribute {kind!r}, "
                f"or set {kind!r} in the configuration"
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
    """Declare what a function or class takes and gives, as a decorator."""

    def mark(model: Any) -> Any:
        model.inputs, model.outputs = tuple(inputs), tuple(outputs)
        return model

    return mark


def _close(models: Sequence[Any]) -> None:
    """Call `close` of each model that has one; a failing one keeps no other from it."""
    with ExitStack() as closing:
        for model in models:
            close = None if inspect.isroutine(model) else getattr(model, "close", None)
            if close is not None:
                closing.callback(close)


def _positional(model: Callable[..., Any]) -> int:
    """Return how many positional arguments *model* needs or takes; a guess of 1 when unknown."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):  # some callables written in C tell nothing
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def from_plan(plan: ModelSpec) -> Versions:
    """Return the model of *plan*; its options say which callable, and how it is run.

    Options: `callable` ("package.module:attribute", required), `version`, `instances`, `queue`,
    `max_batch_size`, and `arguments`, a mapping for a class.

    Raises:
        ValueError: An option is wrong or missing.
    """
    plan.only("callable", "version", "instances", "queue", "max_batch_size", "arguments")
    source = plan.options.get("callable")
    if not isinstance(source, str) or ":" not in source:
        raise ValueError(
            f"model {plan.name!r}: option 'callable' is {source!r}, needed is package.module:name"
        )
    batch = plan.integer("max_batch_size", 0, least=0)
    signature = plan.signature
    model = PythonBackend(
        plan.name,
        source,
        str(plan.options.get("version", "1")),
        inputs=None if signature is None else signature.inputs,
        outputs=None if signature is None else signature.outputs,
        options=plan.options.get("arguments"),
        max_batch_size=batch if "max_batch_size" in plan.options else None,
        instances=plan.integer("instances", 1),
        queue=plan.integer("queue", 256, least=0),
    )
    return Versions(plan.name, [model])
