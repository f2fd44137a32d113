"""Server status: the reply to a ServerStatusRequest, assembled from other calls.

Readiness, index, metadata and statistics come from the router, so that the status describes each
model as the caller would reach it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

import structlog

from gateway.ir.calls import (
    Call,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    RepositoryIndexRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    ServerTrendsRequest,
)
from gateway.ir.context import NO_CLIENT, Client, Context, ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    NotFound,
    TooLarge,
    UnknownToServer,
    Unsupported,
)
from gateway.ir.identity import GATEWAY
from gateway.ir.limits import DEFAULT_LIMITS, check_name
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    ModelStatus,
    RepositoryEntry,
    ServerStatus,
    Trend,
)
from gateway.ir.statistics import ModelStatistics
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

_MAX_CONCURRENT = 16
_MAX_MODELS = 1024


async def model_status(
    service: Service,
    name: str,
    *,
    timeout_s: float = 2.0,
    protocol: str = "",
    client: Client = NO_CLIENT,
) -> bool | None:
    """Return whether a model is ready; None if no server has a model of this name.

    Servers reply "not ready" for unknown names too, so the index and the metadata decide. A model
    whose server does not tell may exist, and is not ready.

    Args:
        service: The entry of a listener.
        name: From a client.
        timeout_s: For all calls together.
        protocol: The protocol of the caller, for the log.
        client: The caller.
    """
    limits = DEFAULT_LIMITS
    model = ModelRef(name)
    deadline = time.monotonic() + timeout_s
    # The caller has checked what the client may ask.
    caller = Client(client.address, client.agent, GATEWAY)
    context = Context(protocol=protocol, deadline=deadline, client=caller)
    try:
        check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
        if await service(ModelReadyRequest(model=model, context=context)):
            return True
        index = await service(RepositoryIndexRequest(context=context))
        if not _of_model(name, index):
            await service(ModelMetadataRequest(model=model, context=context))
    except (NotFound, InvalidRequest, TooLarge):
        return None
    except GatewayError:
        return False
    return False


class UnknownModels:
    """Raises `UnknownToServer` instead of "not ready" for a model that no server has.

    Args:
        inner: The router.
    """

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*; ask about a model that is not ready."""
        if isinstance(call, ModelReadyRequest):
            # The reply to a ModelReadyRequest is a bool, which is its R.
            return cast("ReplyCoroutine[R]", self._is_ready(call))
        return self._inner(call)

    async def _is_ready(self, call: ModelReadyRequest) -> bool:
        if await self._inner(call):
            return True
        context = call.with_context(origin=None).context
        try:
            await self._inner(ModelMetadataRequest(model=call.model, context=context))
        except NotFound as error:
            if call.model is not None and not await self._is_listed(call.model, context):
                raise UnknownToServer(error.message, model=call.model) from error
        except GatewayError:
            pass  # it may exist
        return False

    async def _is_listed(self, model: ModelRef, context: Context) -> bool:
        """Return whether an index has the model, which may be unloaded, or no index tells."""
        try:
            index = await self._inner(RepositoryIndexRequest(context=context))
        except Unsupported:
            return False
        except GatewayError:
            return True
        versions = {entry.version for entry in _of_model(model.name, index)}
        return bool(versions if not model.version else versions & {"", model.version})


class ServerStatusLayer:
    """Handles a ServerStatusRequest; other calls pass unchanged.

    Args:
        inner: The router.
        timeout_s: Timeout of each model's metadata; the list of all models omits later ones.
        clock: Monotonic seconds; uptime starts now.
    """

    def __init__(
        self,
        inner: Service,
        *,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._clock = clock
        self._started = clock()

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*."""
        if isinstance(call, ServerStatusRequest):
            # The reply to a ServerStatusRequest is a ServerStatus, which is its R.
            return cast("ReplyCoroutine[R]", self._status(call))
        return self._inner(call)

    async def _status(self, call: ServerStatusRequest) -> ServerStatus:
        """Return the status.

        Raises:
            GatewayError: The metadata of the only requested model is not available.
        """
        context = call.context
        ready = await self._inner(ServerReadyRequest(context=context))
        if call.about is not None:
            entries = await self._entries(context)
            metadata = await self._metadata_of(call.about, entries, context)
            statistics = await self._statistics(ModelRef(call.about.name), context)
            models: tuple[ModelStatus, ...] = (
                ModelStatus(metadata, _of_model(call.about.name, entries), statistics),
            )
        else:
            models = await self._models(context)
        trends: Mapping[str, Trend] = {}
        if call.trends:
            trends = await self._inner(ServerTrendsRequest(context=context))
        uptime_s = self._clock() - self._started
        return ServerStatus(is_ready=ready, uptime_s=uptime_s, models=models, trends=trends)

    async def _models(self, context: Context) -> tuple[ModelStatus, ...]:
        entries = await self._entries(context)
        names = list(dict.fromkeys(entry.name for entry in entries))[:_MAX_MODELS]
        limit = asyncio.Semaphore(_MAX_CONCURRENT)
        lookups = asyncio.gather(
            *(self._metadata(name, _of_model(name, entries), context, limit) for name in names)
        )
        found, statistics = await asyncio.gather(lookups, self._statistics(None, context))
        return tuple(
            ModelStatus(
                metadata,
                _of_model(name, entries),
                tuple(one for one in statistics if one.name == name),
            )
            for name, metadata in zip(names, found, strict=True)
            if metadata is not None
        )

    async def _metadata_of(
        self, model: ModelRef, entries: tuple[RepositoryEntry, ...], context: Context
    ) -> ModelMetadata:
        """Return a model's metadata; of a model that the index lists as unloaded its name alone.

        Raises:
            GatewayError: The metadata is not available, and the model is not unloaded.
        """
        try:
            return await self._inner(ModelMetadataRequest(model=model, context=context))
        except GatewayError:
            if _is_unloaded(_of_model(model.name, entries)):
                return ModelMetadata(name=model.name)
            raise

    async def _statistics(
        self, model: ModelRef | None, context: Context
    ) -> tuple[ModelStatistics, ...]:
        """Return the statistics; empty if there are none, or not before the timeout."""
        call = ModelStatisticsRequest(model=model, context=context)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._inner(call)
        except (GatewayError, TimeoutError):
            return ()

    async def _entries(self, context: Context) -> tuple[RepositoryEntry, ...]:
        try:
            return await self._inner(RepositoryIndexRequest(context=context))
        except Unsupported:
            return ()

    async def _metadata(
        self,
        name: str,
        entries: tuple[RepositoryEntry, ...],
        context: Context,
        limit: asyncio.Semaphore,
    ) -> ModelMetadata | None:
        """Return a model's metadata; None if it is not available; of an unloaded model the name."""
        if _is_unloaded(entries):
            return ModelMetadata(name=name)
        call = ModelMetadataRequest(model=ModelRef(name), context=context)
        try:
            async with limit, asyncio.timeout(self._timeout_s):
                return await self._inner(call)
        except TimeoutError:
            reason = f"no metadata within {self._timeout_s} s"
        except GatewayError as error:
            reason = error_text(error)
        log.warning("model omitted from server status", model=name, reason=reason)
        return None


def _is_unloaded(entries: tuple[RepositoryEntry, ...]) -> bool:
    """Return whether every version of a model was unloaded, or could not be loaded."""
    return bool(entries) and all(
        entry.version and entry.state in (ModelState.UNAVAILABLE, ModelState.UNLOADING)
        for entry in entries
    )


def _of_model(name: str, entries: Iterable[RepositoryEntry]) -> tuple[RepositoryEntry, ...]:
    return tuple(entry for entry in entries if entry.name == name)
