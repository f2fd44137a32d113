"""Builds the models that run in the gateway's own process, each with its layers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from gateway.api.extension import ModelLoader
from gateway.api.layer import LayerContext
from gateway.api.model_spec import ModelSpec
from gateway.app.build.batching import batch_queues
from gateway.app.build.chain_context import ChainContext, NewContext, no_context
from gateway.app.build.declarations import Declarations
from gateway.app.build.kept_parts import KeptParts
from gateway.app.build.routes import Ready, RouteTarget
from gateway.app.chains.tracing import Spans
from gateway.app.check.worker_limits import STATELESS
from gateway.app.layers import build_chain
from gateway.backends.hosted import versions_of
from gateway.backends.reloadable import ReloadableModel
from gateway.config.models import Config, ModelConfig
from gateway.ir.calls import Call, RepositoryIndexRequest
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import RepositoryEntry
from gateway.policies.reject_sequences import ModelProcesses
from gateway.policies.signatures import SIGNATURE, DescribedModels, metadata_of
from gateway.registry import backend, extensions
from gateway.settings.config_view import ConfigView

R = TypeVar("R")

MakeLoader = Callable[[LayerContext], ModelLoader]
"""Makes what loads the models of the gateway when calls need them."""


@dataclass(frozen=True, slots=True)
class BuiltModels:
    """Every in-process model, by its name."""

    loadable: Mapping[str, ReloadableModel]
    targets: Mapping[str, RouteTarget]
    loader: ModelLoader | None = None

    async def load(self, names: Iterable[str] | None = None) -> None:
        """Load the models *names* concurrently; None for all. With a loader, calls load them.

        Raises:
            LoadError: A model cannot be loaded; the others are unloaded.
        """
        if self.loader is not None:
            self.loader.follow(self.loadable)
            return
        names = tuple(self.loadable if names is None else names)
        tasks = [asyncio.ensure_future(self.loadable[name].start()) for name in names]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close(names)
            raise

    async def close(self, names: Iterable[str] | None = None) -> None:
        """Unload the models *names*, or all if it is None; idempotent."""
        names = self.loadable if names is None else names
        await asyncio.gather(*(self.loadable[name].stop() for name in names))

    async def index(self, call: Call[R], /) -> R:
        """Return the models with their versions; a Service for RepositoryIndexRequest only."""
        if not isinstance(call, RepositoryIndexRequest):
            raise Unsupported(f"the index of models does not support {type(call).__name__}")
        entries: list[RepositoryEntry] = []
        for model in self.loadable.values():
            entries.extend(model.entries())
        # The reply type R of a RepositoryIndexRequest is a tuple of entries.
        return cast("R", tuple(entries))


def build_models(  # noqa: PLR0913  # by name but the first three
    config: Config,
    directory: Path,
    parts: KeptParts | None = None,
    *,
    workers: int = 1,
    at: NewContext = no_context,
    shared: Sequence[object] = (),
    declarations: Declarations = MappingProxyType({}),
    loader: MakeLoader | None = None,
) -> BuiltModels:
    """Build every model that has a backend, without loading it.

    Args:
        config: The configuration.
        directory: Model paths are relative to it.
        parts: Has the models that are loaded already, if there are any.
        workers: The number of processes; each has its own copy of every model.
        at: Returns what the layers of a model may use.
        shared: Settings of layers that do not belong to one model.
        declarations: What is declared of the models for protocols.
        loader: Makes what loads models when calls need them; None if the start loads them.

    Raises:
        LookupError: A backend does not exist.
        ValueError: An option is invalid, or a model has no version.
        OSError: A file is missing.
    """
    parts = parts or KeptParts()
    loadable: dict[str, ReloadableModel] = {}
    targets: dict[str, RouteTarget] = {}
    made = None
    if loader is not None:
        found = loader(replace(at("", {}, parts.keep_of("model loader", "")), layer="model loader"))
        made = parts.get("model loader", "", found, lambda: found)

    def build(name: str, model: ModelConfig, loaded: ReloadableModel) -> RouteTarget:
        declared = {name: declarations[name]} if name in declarations else {}

        def target() -> RouteTarget:
            context = at(name, {"model": model}, parts.keep_of("model target", name))
            ready: Ready = loaded.ready
            if made is not None:
                context = context.with_parts(made)
                ready = partial(made.is_loadable, name)
            processes = ModelProcesses(1 if model.backend in STATELESS else workers)
            return _target(name, loaded, ready, model, declared, context.with_parts(processes))

        # The contents of the files of declarations are in `declared`.
        own = model.model_copy(update={"protocols": {}})
        return parts.get("model target", name, (loaded, own, declared, made, *shared), target)

    for name, model in config.models.items():
        if model.backend is not None:
            spec = model_spec(name, model, directory)
            find = partial(versions_of, backend(model.backend), spec)
            # Its layers and what is declared of it need no other model; other files do.
            source = (model.backend, spec, spec.file_states())
            loadable[name] = parts.get("model", name, source, partial(ReloadableModel, find))
            targets[name] = build(name, model, loadable[name])
    return BuiltModels(loadable, targets, made)


def model_loader_of(config: ConfigView) -> MakeLoader | None:
    """Return what makes the loader of the first extension that has one; None for none."""
    found = (each.model_loader(config) for each in extensions().values())
    return next((make for make in found if make is not None), None)


def _target(  # one caller
    name: str,
    model: ReloadableModel,
    ready: Ready,
    config: ModelConfig,
    declared: Declarations,
    at: ChainContext,
) -> RouteTarget:
    signatures = {}
    signature = SIGNATURE.of(config)
    if signature is not None:
        # Labels and batch size come from the configuration; the ModelSpec has the tensors.
        signatures[name] = signature.model_copy(update={"inputs": None, "outputs": None})
    at = at.with_parts(
        batch_queues(name, config, at.part(Spans).tracing), DescribedModels(signatures, declared)
    )
    return RouteTarget(build_chain("model", model, at), ready)


def model_spec(name: str, model: ModelConfig, directory: Path) -> ModelSpec:
    """Return the specification of a model of a configuration. Raises ValueError."""
    signature = SIGNATURE.of(model)
    if signature is not None and (signature.inputs is None) != (signature.outputs is None):
        key = "inputs" if signature.outputs is None else "outputs"
        raise ValueError(
            f"the signature of in-process model {name!r} has only {key}; "
            "expected inputs and outputs, or neither"
        )
    metadata = None
    if signature is not None and signature.is_complete:
        metadata = metadata_of(name, signature)
    return ModelSpec(
        name=name,
        path=None if model.path is None else directory / model.path,
        options=model.options,
        signature=metadata,
    )
