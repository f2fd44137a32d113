"""Builds the models that run in the gateway's own process, each with its layers."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from gateway.app.batching import model_parts
from gateway.app.declarations import Declarations
from gateway.app.kept_parts import KeptParts
from gateway.app.layers import Tracing, build_chain
from gateway.app.routes import RouteTarget
from gateway.app.signatures import metadata_of
from gateway.app.worker_limits import STATELESS
from gateway.backends.model_spec import ModelSpec
from gateway.backends.reloadable import ReloadableModel
from gateway.config.models import Config, ModelConfig
from gateway.ir.calls import Call, RepositoryIndexRequest
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import RepositoryEntry
from gateway.registry import backend
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BuiltModels:
    """Every in-process model, by its name."""

    loadable: Mapping[str, ReloadableModel]
    targets: Mapping[str, RouteTarget]

    async def load(self, names: Iterable[str] | None = None) -> None:
        """Load the models *names* concurrently; None for all.

        Raises:
            LoadError: A model cannot be loaded; the others are unloaded.
        """
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


def build_models(
    config: Config,
    directory: Path,
    metrics: Metrics,
    parts: KeptParts | None = None,
    *,
    workers: int = 1,
    tracing: Tracing | None = None,
    declarations: Declarations = MappingProxyType({}),
) -> BuiltModels:
    """Build every model that has a backend, without loading it.

    Args:
        config: The configuration.
        directory: Model paths are relative to it.
        metrics: Counts batches and cache lookups.
        parts: Has the models that are loaded already, if there are any.
        workers: The number of processes; each has its own copy of every model.
        tracing: Makes spans of runs and merged calls; None for no spans.
        declarations: What is declared of the models for protocols.

    Raises:
        LookupError: A backend does not exist.
        ValueError: An option is invalid, or a model has no version.
        OSError: A file is missing.
    """
    parts = parts or KeptParts()
    loadable: dict[str, ReloadableModel] = {}
    targets: dict[str, RouteTarget] = {}
    for name, model in config.models.items():
        if model.backend is not None:
            find = partial(backend(model.backend), _model_spec(name, model, directory))
            # What a declaration changes needs no other model.
            source = model.model_copy(update={"protocols": {}})
            loaded = parts.get("model", name, source, partial(ReloadableModel, find))
            loadable[name] = loaded
            declared = {name: declarations[name]} if name in declarations else {}
            target = partial(_target, name, loaded, model, metrics, workers, tracing, declared)
            targets[name] = parts.get("model target", name, (loaded, declared), target)
    return BuiltModels(loadable, targets)


def _target(
    name: str,
    model: ReloadableModel,
    config: ModelConfig,
    metrics: Metrics,
    workers: int,
    tracing: Tracing | None,
    declared: Declarations,
) -> RouteTarget:
    signatures = {}
    if config.signature is not None:
        # Labels and batch size come from the configuration; the ModelSpec has the tensors.
        signatures[name] = config.signature.model_copy(update={"inputs": None, "outputs": None})
    parts = model_parts(
        name,
        config,
        metrics,
        tracing,
        signatures=signatures,
        declarations=declared,
        workers=1 if config.backend in STATELESS else workers,
        trace=None if tracing is None else tracing.model,
    )
    return RouteTarget(build_chain("model in process", model, parts), model.ready)


def _model_spec(name: str, model: ModelConfig, directory: Path) -> ModelSpec:
    signature = model.signature
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
