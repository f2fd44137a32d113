"""Residency: a layer before an upstream whose models calls load.

A call of a loaded model takes a reference and goes on. All else is here: where a model lives, the
wait for a load, a call whose model was gone at the server, and questions about models.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

from gateway.api.layer import Entries, LayerContext
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import ErrorCode, GatewayError, ModelNotFound, NotSent
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.ir.unread import failure_of
from gateway.residency.controller import ResidencyController
from gateway.residency.homes import HeldModel, Homes, phase_at
from gateway.residency.meters import EndpointMeters
from gateway.residency.plan import ModelPhase, UnloadReason
from gateway.residency.sequences import HeldSequences
from gateway.residency.server import EndpointServer
from gateway.residency.settings import ResidencyConfig
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.placement import PLACEMENT
from gateway.service import ReplyCoroutine

R = TypeVar("R")

_RESENDS: Final = 2
"""How often a call whose model was gone at the server is sent again."""

_MAX_DESCRIPTIONS: Final = 4096

_OTHERS: Final = frozenset(
    {
        ModelMetadataRequest,
        ModelConfigRequest,
        ModelReadyRequest,
        ModelLoadRequest,
        ModelUnloadRequest,
        RepositoryIndexRequest,
    }
)


_GONE: Final = frozenset({ErrorCode.NOT_FOUND, ErrorCode.NOT_READY, ErrorCode.UNAVAILABLE})
"""Errors by which servers reply to calls of models that they do not hold."""


class Residency:
    """Sends each call to an endpoint that holds its model, and has it loaded before.

    Args:
        inner: The upstream.
        endpoints: Its endpoints.
        make: Returns the controller of an endpoint, which keeps some models loaded.
        copies: Returns how many endpoints hold a model.
        pinned: Models that are loaded from the start.
        clock: Monotonic seconds.

    Attributes:
        homes: The endpoints with their controllers.
    """

    def __init__(
        self,
        inner: Entries,
        endpoints: Endpoints,
        make: Callable[[Endpoint, tuple[str, ...]], ResidencyController],
        copies: Callable[[str], int],
        *,
        pinned: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner.questions
        self._inference = inner.inference
        self._endpoints = endpoints
        self._clock = clock
        endpoints.follow_placement()
        self.homes = Homes(endpoints, make, copies, pinned=pinned, clock=clock)
        self._only = self.homes.only
        self._sequences = HeldSequences(endpoints.affinity, clock)
        self._descriptions: dict[tuple[Any, ...], Any] = {}

    # The life of the layer

    def start(self) -> None:
        """Begin to read the indexes, and load the pinned models."""
        self.homes.start()

    async def close(self) -> None:
        """Stop; loads that run go on at their servers."""
        self._sequences.close()
        await self.homes.close()

    # Inference

    def handle_inference(self, call: InferRequest, /) -> ReplyCoroutine[InferResponse]:
        """Send an inference to an endpoint that holds its model."""
        return self._infer(call)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*; its model is loaded first.

        Raises:
            ModelNotFound: No endpoint has the model, or calls may not load it.
            LoadFailed: It cannot be loaded.
            Overloaded: Too many calls wait for models.
            DeadlineExceeded: It was not loaded in time.
        """
        kind = type(call)
        if kind is InferRequest:
            return cast("ReplyCoroutine[R]", self._infer(cast("InferRequest", call)))
        if kind is StreamInferRequest:
            return self.send(call)
        return self._reply(call) if kind in _OTHERS else self._inner(call)

    async def _infer(self, call: InferRequest) -> InferResponse:
        # The usual call: one endpoint, and the model is loaded.
        only, model = self._only, call.model
        if model is None or call.sequence is not None:
            return await self.send(call)
        if only is None:
            return await self._infer_at_home(call, model)
        plan = only.controller.plan
        found = plan.models.get(model.name)
        if found is None or found.phase is not ModelPhase.LOADED:
            return await self.send(call)
        plan.turn = found.turn = plan.turn + 1
        found.uses += 1
        try:
            return await self._inference(call)
        except GatewayError as error:
            if error.code not in _GONE or not await self.is_gone(HeldModel(only, found), call):
                raise
        finally:
            found.uses -= 1
            if not found.uses:
                only.controller.note_unused(found)
        return await self.send(call, _RESENDS - 1)

    async def _infer_at_home(self, call: InferRequest, model: ModelRef) -> InferResponse:
        """Send an inference to the first of several endpoints, if it holds the model alone."""
        homes = self.homes
        home = homes.first.get(model.name)
        endpoints = self._endpoints.endpoints
        if home is None or endpoints is not homes.ranked_of or home.endpoint.closed_to:
            return await self.send(call)
        plan = home.controller.plan
        found = plan.models.get(model.name)
        is_loaded = found is not None and found.phase is ModelPhase.LOADED
        if found is None or not is_loaded or not home.endpoint.is_available(self._clock()):
            return await self.send(call)
        plan.turn = found.turn = plan.turn + 1
        found.uses += 1
        token = PLACEMENT.set(home.endpoint)
        try:
            return await self._inference(call)
        except GatewayError as error:
            is_gone = error.code in _GONE and await self.is_gone(HeldModel(home, found), call)
            if not is_gone and not isinstance(error, NotSent):
                raise
        finally:
            PLACEMENT.reset(token)
            found.uses -= 1
            if not found.uses:
                home.controller.note_unused(found)
        return await self.send(call, _RESENDS - 1)

    async def is_gone(self, held: HeldModel, call: Call[Any]) -> bool:
        """Return whether the server does not hold the model of a call, which can be repeated."""
        if _has_begun(call) or not await held.home.controller.is_gone(held.model):
            return False
        self._forget(held.model.name)
        return True

    async def send(self, call: Call[R], resends: int = _RESENDS) -> R:
        """Send *call* to an endpoint that holds its model.

        Raises:
            GatewayError: The endpoint's error, or why the model is not loaded.
        """
        tried: set[Endpoint] = set()
        while True:
            held, sequence = await self._acquire(call, tried)
            token = PLACEMENT.set(held.home.endpoint)
            try:
                reply = await self._inner(call)
            except GatewayError as error:
                self.end_call(held, sequence, is_lost=True)
                is_free = sequence is None and isinstance(error, NotSent)
                if is_free and self._has_others(call, held, tried):
                    tried.add(held.home.endpoint)
                    continue
                is_open = sequence is not None and not sequence.start
                if not resends or is_open or error.code not in _GONE:
                    raise
                if not await self.is_gone(held, call):
                    raise
                resends -= 1
                continue
            except BaseException:
                self.end_call(held, sequence, is_lost=True)
                raise
            finally:
                PLACEMENT.reset(token)
            if type(call) is StreamInferRequest:
                stream = HeldStream(self, call, held, sequence, reply, resends)
                return cast("R", stream)
            self.end_call(held, sequence)
            return reply

    def _has_others(self, call: Call[Any], held: HeldModel, tried: set[Endpoint]) -> bool:
        if _has_begun(call):
            return False
        others = set(self.homes.available(held.model.name, tried)) - {held.home.endpoint}
        return bool(others)

    async def _acquire(
        self, call: Call[Any], tried: Iterable[Endpoint] = ()
    ) -> tuple[HeldModel, CallSequence | None]:
        """Return a reference to the model of *call*, and the sequence of the call."""
        model = call.model
        if model is None:
            raise ModelNotFound("the call names no model")
        request = inference_of(call)
        sequence = None if request is None else request.sequence
        if sequence is not None:
            held = self._sequences.resume(model, sequence)
            if held is None:
                held = self._sequences.begin(model, sequence, await self._hold(model, tried))
            return held, sequence
        return await self._hold(model, tried), None

    async def _hold(self, model: ModelRef, tried: Iterable[Endpoint] = ()) -> HeldModel:
        name = model.name
        homes = self.homes.of(name, tried)
        loaded = [home for home in homes if phase_at(home, name) is ModelPhase.LOADED]
        if len(loaded) > 1:
            loaded.sort(key=lambda home: home.endpoint.pending)
        for home in homes if loaded else ():
            home.controller.want(name)  # the other copies
        home = (loaded or homes)[0]
        return HeldModel(home, await home.controller.hold(name, model))

    def end_call(
        self, held: HeldModel, sequence: CallSequence | None, *, is_lost: bool = False
    ) -> None:
        """Give back the reference of a call, and that of its sequence if it is over.

        Args:
            held: The reference.
            sequence: The sequence of the call.
            is_lost: Whether the call failed.
        """
        held.release()
        if sequence is not None and (sequence.end or (is_lost and sequence.start)):
            self._sequences.end(held.model.name, sequence)

    def has(self, name: str) -> bool:
        """Return whether an endpoint has the model."""
        return any(name in home.controller.index.models for home in self.homes.all())

    def pin(self, name: str) -> None:
        """Load a model where it lives, and keep it."""
        for home in self.homes.of(name):
            home.controller.pin(name)

    def unpin(self, name: str) -> None:
        """Let a model be unloaded for others again."""
        for home in self.homes.all():
            home.controller.unpin(name)

    async def document(self) -> list[dict[str, Any]]:
        """Return what each endpoint holds, for the status."""
        return [await home.controller.document() for home in self.homes.all()]

    async def evict(self, name: str) -> None:
        """Unload a model at every endpoint, when its running calls have ended."""
        await self._evict(name, UnloadReason.EVICTION)

    # Questions about models, loads and unloads

    async def _reply(self, call: Call[R]) -> R:
        """Handle a question about models, a load or an unload."""
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if isinstance(call, RepositoryIndexRequest):
            return cast("R", await self._index(call))
        if call.model is None:
            return await self._inner(call)
        if isinstance(call, ModelReadyRequest):
            return cast("R", await self._ready(call, call.model))
        if isinstance(call, ModelLoadRequest):
            return cast("R", await self._load(call, call.model))
        if isinstance(call, ModelUnloadRequest):
            return cast("R", await self._unload(call.model))
        return await self._describe(call)

    async def _describe(self, call: Call[R]) -> R:
        """Return metadata or the configuration of a model from memory, else by a load."""
        model = call.model
        key = (type(call), model, call.context.needs)
        found = self._descriptions.get(key)
        if found is None:
            found = cast("Any", await self.send(call))
            if len(self._descriptions) >= _MAX_DESCRIPTIONS:
                del self._descriptions[next(iter(self._descriptions))]
            self._descriptions[key] = found
        return cast("R", found)

    def _forget(self, name: str) -> None:
        """Forget the descriptions of a model, which may have changed."""
        for key in [key for key in self._descriptions if key[1].name == name]:
            del self._descriptions[key]

    async def _ready(self, call: ModelReadyRequest, model: ModelRef) -> bool:
        """Return whether an inference of the model would be served."""
        home = self.homes.of(model.name)[0]
        if phase_at(home, model.name) is ModelPhase.LOADED:
            token = PLACEMENT.set(home.endpoint)
            try:
                return await self._inner(call)
            finally:
                PLACEMENT.reset(token)
        try:
            await home.controller.check_model(model.name, model)
        except ModelNotFound:
            return False
        return home.controller.is_loadable(model.name)

    async def _load(self, call: ModelLoadRequest, model: ModelRef) -> None:
        """Load a model where it lives, or load it again."""
        self._forget(model.name)
        homes = self.homes.of(model.name)
        loads = (home.controller.load(model.name, call.parameters, model) for home in homes)
        await asyncio.gather(*loads)
        self._forget(model.name)

    async def load_at(self, endpoint: Endpoint, call: ModelLoadRequest, /) -> None:
        """Load a model at one endpoint, or load it again."""
        model = call.model
        if model is not None:
            controller = self.homes.at(endpoint).controller
            await controller.load(model.name, call.parameters, model)
            self._forget(model.name)

    async def _unload(self, model: ModelRef) -> None:
        """Unload a model everywhere, when its running calls have ended."""
        self._forget(model.name)
        for home in self.homes.all():
            home.controller.unpin(model.name)
        await self._evict(model.name, UnloadReason.REQUEST)

    async def _evict(self, name: str, reason: UnloadReason) -> None:
        """Unload a model at every endpoint, when its running calls have ended."""
        homes = self.homes.all()
        await asyncio.gather(*(home.controller.unload(name, reason) for home in homes))

    async def _index(self, call: RepositoryIndexRequest) -> tuple[RepositoryEntry, ...]:
        """Return the models of all endpoints; of equal ones, the entry of the readiest."""
        endpoints = self._endpoints.candidates(self._clock())
        if len(endpoints) <= 1:
            return await self._inner(call)
        results = await asyncio.gather(
            *(self._inner_at(endpoint, call) for endpoint in endpoints), return_exceptions=True
        )
        replies = [each for each in results if not isinstance(each, BaseException)]
        if not replies:
            raise next(each for each in results if isinstance(each, BaseException))
        found: dict[str, list[RepositoryEntry]] = {}
        for reply in replies:
            for name, entries in _by_model(reply).items():
                if name not in found or _is_ready(entries) > _is_ready(found[name]):
                    found[name] = entries
        return tuple(entry for entries in found.values() for entry in entries)

    async def _inner_at(self, endpoint: Endpoint, call: Call[R]) -> R:
        PLACEMENT.set(endpoint)  # of this task alone
        return await self._inner(call)


class HeldStream:
    """The replies of a stream, which hold a reference; sent again if its model was gone."""

    def __init__(
        self,
        residency: Residency,
        call: StreamInferRequest,
        held: HeldModel,
        sequence: CallSequence | None,
        items: Any,
        resends: int,
    ) -> None:
        self._residency = residency
        self._call = call
        self._held: HeldModel | None = held
        self._sequence = sequence
        self._items = cast("AsyncIterator[InferResponse]", items)
        self._resends = resends
        self._has_begun = False

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        """Return the next reply."""
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            if await self._may_resend(error):
                return await self._resend()
            self._end(error)
            raise
        failure = failure_of(item)
        if failure is not None and await self._may_resend(failure):
            return await self._resend()
        self._has_begun = True
        return item

    async def _may_resend(self, error: BaseException) -> bool:
        """Return whether nothing has come because the model was gone at its server."""
        held, sequence = self._held, self._sequence
        is_open = sequence is not None and not sequence.start
        if held is None or self._has_begun or not self._resends or is_open:
            return False
        if not isinstance(error, GatewayError) or error.code not in _GONE:
            return False
        return await self._residency.is_gone(held, self._call)

    async def _resend(self) -> InferResponse:
        await close_stream(self._items)
        held, self._held = self._held, None
        if held is not None:
            self._residency.end_call(held, self._sequence, is_lost=True)
        self._items = await self._residency.send(self._call, self._resends - 1)
        self._has_begun = True  # the stream inside does the rest
        return await anext(self._items)

    def _end(self, error: BaseException | None) -> None:
        held, self._held = self._held, None
        if held is not None:
            is_lost = error is not None
            self._residency.end_call(held, self._sequence, is_lost=is_lost)

    async def aclose(self) -> None:
        """Close the stream; may be called twice."""
        try:
            await close_stream(self._items)
        finally:
            self._end(None)


def _by_model(entries: Iterable[RepositoryEntry]) -> Mapping[str, list[RepositoryEntry]]:
    found: dict[str, list[RepositoryEntry]] = {}
    for entry in entries:
        found.setdefault(entry.name, []).append(entry)
    return found


def _is_ready(entries: Iterable[RepositoryEntry]) -> bool:
    return any(entry.state is ModelState.READY for entry in entries)


def _has_begun(call: Call[Any]) -> bool:
    """Return whether a part of the body of a call is sent already."""
    body = streaming_body_of(call)
    return body is not None and body.is_started


def build(inner: Entries, at: LayerContext, config: ResidencyConfig) -> Residency:
    """Return the layer before an upstream.

    Args:
        inner: The upstream.
        at: Publishes the metrics, and has the endpoints.
        config: How much room there is.
    """
    endpoints = at.part(Endpoints)
    rules = config.rules()

    def make(endpoint: Endpoint, pinned: tuple[str, ...]) -> ResidencyController:
        meters = EndpointMeters(at, endpoints.name, endpoint.name)
        made = ResidencyController(
            endpoint.name,
            EndpointServer(endpoint, config.load_timeout),
            rules,
            meters,
            pinned=pinned,
            callers=lambda: residency.homes.callers,
            turn=partial(HostTurn, endpoint.name.rpartition(":")[0]),
        )
        meters.watch(made)
        return made

    residency = Residency(inner, endpoints, make, config.copies_of(), pinned=config.pinned)
    EndpointMeters.watch_waiting(at, endpoints.name, residency.homes)
    endpoints.placement = residency
    return residency


_PAUSE_S: Final = 0.005
_LIMIT_S: Final = 2.0
"""Longest wait for a turn. A program that keeps the name can only delay loads."""


class HostTurn:
    """Excludes other processes of this machine that load models at the same host.

    Gateways and workers share no store.  Between the index that shows a free place and the load
    that takes it, another one could take the same place.  The kernel frees the name of a socket
    when its process ends.  Processes on other machines are not excluded.

    Args:
        host: The host of the server.
    """

    def __init__(self, host: str) -> None:
        self._name = f"\0tensor-gateway/residency/{host}"
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> Self:
        """Wait for a turn; without one, go on after a while."""
        if sys.platform != "linux":
            return self
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        end = time.monotonic() + _LIMIT_S
        try:
            while not _binds(own, self._name) and time.monotonic() < end:  # noqa: ASYNC110  # no event
                await asyncio.sleep(_PAUSE_S)
        except BaseException:
            own.close()
            raise
        self._socket = own
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Let another process have its turn."""
        own, self._socket = self._socket, None
        if own is not None:
            own.close()


def _binds(own: socket.socket, name: str) -> bool:
    try:
        own.bind(name)
    except OSError:
        return False
    return True
