"""Models of the configuration that run in the gateway's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from gateway.app.batching import model_parts
from gateway.app.layers import build_chain
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
    places: Mapping[str, RouteTarget]

    async def load(self) -> None:
        """Load all of them, side by side.

        Raises:
            LoadError: One cannot be loaded; the others are unloaded.
        """
        starting = [asyncio.ensure_future(model.start()) for model in self.loadable.values()]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            await asyncio.gather(*starting, return_exceptions=True)
            await self.close()
            raise

    async def close(self) -> None:
        """Unload all of them; harmless the second time."""
        await asyncio.gather(*(model.stop() for model in self.loadable.values()))

    async def index(self, call: Call[R], /) -> R:
        """List the models with their versions; a Service for the index alone."""
        if not isinstance(call, RepositoryIndexRequest):
            raise Unsupported(f"the index of models does not support {type(call).__name__}")
        entries: list[RepositoryEntry] = []
        for model in self.loadable.values():
            entries.extend(model.entries())
        # The answer to a RepositoryIndexRequest is a tuple of entries, which is its R.
        return cast("R", tuple(entries))


def build_models(
    config: Config, directory: Path, metrics: Metrics, *, workers: int = 1
) -> BuiltModels:
    """Describe every model that has a backend; nothing is loaded yet.

    Args:
        config: Which models, and how.
        directory: What their paths are relative to.
        metrics: Of what their callers share.
        workers: How many processes have these models, each its own.

    Raises:
        LookupError: No such backend.
        ValueError: An option is wrong, or the model has no version.
        OSError: A file is missing.
    """
    loadable: dict[str, ReloadableModel] = {
        name: ReloadableModel(partial(backend(model.backend), _plan(name, model, directory)))
        for name, model in config.models.items()
        if model.backend is not None
    }
    places = {
        name: _place(name, model, config.models[name], metrics, workers)
        for name, model in loadable.items()
    }
    return BuiltModels(loadable, places)


def _place(
    name: str, model: ReloadableModel, config: ModelConfig, metrics: Metrics, workers: int
) -> RouteTarget:
    signatures = {}
    if config.signature is not None:
        # Labels and the batch size are known to the configuration only; the rest is in the spec.
        signatures[name] = config.signature.model_copy(update={"inputs": None, "outputs": None})
    parts = model_parts(
        name,
        config,
        metrics,
        signatures=signatures,
        workers=1 if config.backend in STATELESS else workers,
    )
    return RouteTarget(build_chain("model in process", model, parts), model.ready)


def _plan(name: str, model: ModelConfig, directory: Path) -> ModelSpec:
    signature = model.signature
    if signature is not None and (signature.inputs is None) != (signature.outputs is None):
        raise ValueError(
            f"model {name!r} runs here, so its signature gives inputs and outputs, or neither"
        )
    given = None
    if signature is not None and signature.is_whole:
        given = metadata_of(name, signature)
    return ModelSpec(
        name=name,
        path=None if model.path is None else directory / model.path,
        options=model.options,
        signature=given,
    )
