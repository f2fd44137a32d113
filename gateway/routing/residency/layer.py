"""Residency: a layer before an upstream whose models calls load.

A call of a loaded model takes a reference and goes on. All else is here: where a model lives, the
wait for a load, a call whose model was gone at the server, and questions about models.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

from gateway.api.layer import Entries, LayerContext
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
    ServerLiveRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import GatewayError, ModelNotFound, NotSent, Unavailable
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.ir.streaming_body import streaming_body_of
from gateway.routing.endpoints import Endpoint, Endpoints
from gateway.routing.placement import PLACEMENT
from gateway.routing.residency.controller import ResidencyController
from gateway.routing.residency.held import GONE, HeldModel, HeldStream, Home
from gateway.routing.residency.host_turn import HostTurn
from gateway.routing.residency.meters import EndpointMeters
from gateway.routing.residency.plan import ModelPhase, UnloadReason
from gateway.routing.residency.server import EndpointServer
from gateway.routing.residency.settings import ResidencyConfig
from gateway.routing.sequence_affinity import SequenceKey, rendezvous_order
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


@dataclass(slots=True, eq=False)
class _OpenSequence:
    """A sequence that holds a reference."""

    held: HeldModel
    used_at: float


class Residency:
    """Sends each call to an endpoint that holds its model, and has it loaded before.

    Args:
        inner: The upstream.
        endpoints: Its endpoints.
        make: Returns the controller of an endpoint, which keeps some models loaded.
        copies: Returns how many endpoints hold a model.
        pinned: Models that are loaded from the start.
        clock: Monotonic seconds.
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
        self._make = make
        self._copies = copies
        self._pinned = tuple(pinned)
        self._clock = clock
        self._homes: dict[Endpoint, Home] = {}
        self._is_started = False
        self._ranked: dict[str, tuple[Endpoint, ...]] = {}
        self._ranked_of: tuple[Endpoint, ...] = ()
        self._first: dict[str, Home] = {}  # of models that live at one endpoint
        self._descriptions: dict[tuple[Any, ...], Any] = {}
        self._sequences: dict[SequenceKey, _OpenSequence] = {}
        self._sequence_timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        endpoints.follow_placement()
        self._only: Home | None = None
        if endpoints.is_fixed and len(endpoints.endpoints) == 1:
            self._only = self._home(endpoints.endpoints[0])

    # The life of the layer

    def start(self) -> None:
        """Begin to read the indexes, and load the pinned models."""
        for home in self.homes():
            home.controller.start()
        self._is_started = True
        for endpoint in self._endpoints.endpoints:
            self._home(endpoint)

    async def close(self) -> None:
        """Stop; loads that run go on at their servers."""
        if self._sequence_timer is not None:
            self._sequence_timer.cancel()
        await asyncio.gather(*(home.controller.close() for home in self.homes()))

    @property
    def callers(self) -> int:
        """How many calls wait for models."""
        return sum(home.controller.plan.callers for home in self._homes.values())

    def homes(self) -> tuple[Home, ...]:
        """Return the endpoints with their controllers."""
        return tuple(self._homes.values())

    def _home(self, endpoint: Endpoint) -> Home:
        home = self._homes.get(endpoint)
        if home is None:
            endpoint.probe_call = ServerLiveRequest
            pinned = tuple(each for each in self._pinned if self._lives_at(each, endpoint))
            home = self._homes[endpoint] = Home(endpoint, self._make(endpoint, pinned))
            if self._is_started:
                home.controller.start()
        return home

    def _lives_at(self, name: str, endpoint: Endpoint) -> bool:
        return endpoint in self._order(name)[: self._copies(name)]

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
        return self._other(call) if kind in _OTHERS else self._inner(call)

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
            if error.code not in GONE or not await self.is_gone(HeldModel(only, found), call):
                raise
        finally:
            found.uses -= 1
            if not found.uses:
                only.controller.note_unused(found)
        return await self.send(call, _RESENDS - 1)

    async def _infer_at_home(self, call: InferRequest, model: ModelRef) -> InferResponse:
        """Send an inference to the first of several endpoints, if it holds the model alone."""
        home = self._first.get(model.name)
        endpoints = self._endpoints.endpoints
        if home is None or endpoints is not self._ranked_of or home.endpoint.closed_to:
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
            is_gone = error.code in GONE and await self.is_gone(HeldModel(home, found), call)
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
        self._forget_descriptions(held.model.name)
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
                if not resends or is_open or error.code not in GONE:
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
        others = set(self._available(held.model.name, tried)) - {held.home.endpoint}
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
            return self._continue_sequence(model, sequence) or await self._begin_sequence(
                model, sequence, tried
            ), sequence
        return await self._hold(model, tried), None

    async def _hold(self, model: ModelRef, tried: Iterable[Endpoint] = ()) -> HeldModel:
        name = model.name
        homes = self._homes_of(name, tried)
        loaded = [home for home in homes if _phase(home, name) is ModelPhase.LOADED]
        if len(loaded) > 1:
            loaded.sort(key=lambda home: home.endpoint.pending)
        for home in homes if loaded else ():
            home.controller.want(name)  # the other copies
        home = (loaded or homes)[0]
        return HeldModel(home, await home.controller.hold(name, model))

    def _homes_of(self, name: str, tried: Iterable[Endpoint] = ()) -> list[Home]:
        """Return the endpoints where a model lives; of those available, the first by its hash.

        Raises:
            Unavailable: All endpoints are drained, or there is none.
        """
        endpoints = self._endpoints.endpoints
        if len(endpoints) == 1:
            return [self._home(endpoints[0])]
        ranked = self._order(name)
        available = set(self._available(name, tried))
        chosen = [each for each in ranked if each in available][: self._copies(name)]
        if not chosen:
            raise Unavailable(f"upstream {self._endpoints.name!r} has no endpoint for calls")
        homes = [self._home(each) for each in chosen]
        if self._copies(name) == 1 and chosen[0] is ranked[0] and name in self._ranked:
            self._first[name] = homes[0]
        return homes

    def _order(self, name: str) -> tuple[Endpoint, ...]:
        """Return the endpoints in the order of their hashes with a name."""
        endpoints = self._endpoints.endpoints
        if endpoints is not self._ranked_of:
            self._forget_removed(endpoints)
        ranked = self._ranked.get(name)
        if ranked is None:
            order = rendezvous_order(name, [each.name for each in endpoints])
            by_name = {each.name: each for each in endpoints}
            ranked = tuple(by_name[each] for each in order)
            if len(self._ranked) < _MAX_DESCRIPTIONS:
                self._ranked[name] = ranked
        return ranked

    def _available(self, name: str, tried: Iterable[Endpoint]) -> list[Endpoint]:
        candidates = self._endpoints.candidates(self._clock(), name)
        return [each for each in candidates if each not in tried]

    def _forget_removed(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._ranked, self._ranked_of = {}, endpoints
        self._first.clear()
        for endpoint in self._homes.keys() - set(endpoints):
            home = self._homes.pop(endpoint)
            task = asyncio.ensure_future(home.controller.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # Sequences, each of which holds a reference

    def _continue_sequence(self, model: ModelRef, sequence: CallSequence) -> HeldModel | None:
        key: SequenceKey = (model.name, sequence.id)
        found: _OpenSequence | None = self._sequences.pop(key, None)
        if found is None:
            return None
        if sequence.start:
            found.held.release()
            return None
        found.used_at = self._clock()
        self._sequences[key] = found
        found.held.home.controller.plan.use(found.held.model)
        return found.held

    async def _begin_sequence(
        self, model: ModelRef, sequence: CallSequence, tried: Iterable[Endpoint]
    ) -> HeldModel:
        held = await self._hold(model, tried)
        held.model.uses += 1  # of the sequence, beside that of the call
        self._sequences[model.name, sequence.id] = _OpenSequence(held, self._clock())
        if self._sequence_timer is None:
            self._watch_sequences()
        return held

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
            found = self._sequences.pop((held.model.name, sequence.id), None)
            if found is not None:
                found.held.release()

    def _watch_sequences(self) -> None:
        """Release the references of sequences that have been idle for long."""
        idle_s, now = self._endpoints.affinity.idle_s, self._clock()
        while self._sequences:
            key, oldest = next(iter(self._sequences.items()))
            if now < oldest.used_at + idle_s:
                delay_s = oldest.used_at + idle_s - now
                loop = asyncio.get_running_loop()
                self._sequence_timer = loop.call_later(delay_s, self._watch_sequences)
                return
            del self._sequences[key]
            oldest.held.release()
        self._sequence_timer = None

    # Questions, loads and unloads

    async def _other(self, call: Call[R]) -> R:
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

    def _forget_descriptions(self, name: str) -> None:
        for key in [key for key in self._descriptions if key[1].name == name]:
            del self._descriptions[key]

    async def _ready(self, call: ModelReadyRequest, model: ModelRef) -> bool:
        """Return whether an inference of the model would be served."""
        home = self._homes_of(model.name)[0]
        if _phase(home, model.name) is ModelPhase.LOADED:
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
        self._forget_descriptions(model.name)
        homes = self._homes_of(model.name)
        loads = (home.controller.load(model.name, call.parameters, model) for home in homes)
        await asyncio.gather(*loads)
        self._forget_descriptions(model.name)

    async def load_at(self, endpoint: Endpoint, call: ModelLoadRequest, /) -> None:
        """Load a model at one endpoint, or load it again."""
        model = call.model
        if model is not None:
            controller = self._home(endpoint).controller
            await controller.load(model.name, call.parameters, model)
            self._forget_descriptions(model.name)

    async def _unload(self, model: ModelRef) -> None:
        """Unload a model everywhere, when its running calls have ended."""
        self._forget_descriptions(model.name)
        self.unpin(model.name)
        await self.evict(model.name, UnloadReason.REQUEST)

    def has(self, name: str) -> bool:
        """Return whether an endpoint has the model."""
        return any(name in home.controller.models for home in self.homes())

    def pin(self, name: str) -> None:
        """Load a model where it lives, and keep it."""
        for home in self._homes_of(name):
            home.controller.pin(name)

    def unpin(self, name: str) -> None:
        """Let a model be unloaded for others again."""
        for home in self.homes():
            home.controller.unpin(name)

    def document(self) -> list[dict[str, Any]]:
        """Return what each endpoint holds, for the status."""
        return [home.controller.document() for home in self.homes()]

    async def evict(self, name: str, reason: UnloadReason = UnloadReason.EVICTION) -> None:
        """Unload a model at every endpoint, when its running calls have ended."""
        await asyncio.gather(*(home.controller.unload(name, reason) for home in self.homes()))

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
            for name, entries in _by_model(reply):
                if name not in found or _is_ready(entries) > _is_ready(found[name]):
                    found[name] = entries
        return tuple(entry for entries in found.values() for entry in entries)

    async def _inner_at(self, endpoint: Endpoint, call: Call[R]) -> R:
        PLACEMENT.set(endpoint)  # of this task alone
        return await self._inner(call)


def _has_begun(call: Call[Any]) -> bool:
    """Return whether a part of the body of a call is sent already."""
    body = streaming_body_of(call)
    return body is not None and body.is_started


def _phase(home: Home, name: str) -> ModelPhase:
    found = home.controller.plan.models.get(name)
    return ModelPhase.ABSENT if found is None else found.phase


def _by_model(
    entries: Iterable[RepositoryEntry],
) -> Iterator[tuple[str, list[RepositoryEntry]]]:
    found: dict[str, list[RepositoryEntry]] = {}
    for entry in entries:
        found.setdefault(entry.name, []).append(entry)
    yield from found.items()


def _is_ready(entries: Iterable[RepositoryEntry]) -> bool:
    return any(entry.state is ModelState.READY for entry in entries)


def build(inner: Entries, at: LayerContext, config: ResidencyConfig) -> Residency:
    """Return the layer before an upstream.

    Args:
        inner: The upstream.
        at: Publishes the metrics, and has the endpoints.
        config: How much room there is.
    """
    endpoints = at.part(Endpoints)
    rules, waits = config.plan_rules(), config.wait_rules()

    def make(endpoint: Endpoint, pinned: tuple[str, ...]) -> ResidencyController:
        meters = EndpointMeters(at, endpoints.name, endpoint.name)
        made = ResidencyController(
            endpoint.name,
            EndpointServer(endpoint, config.load_timeout),
            rules,
            waits,
            meters,
            pinned=pinned,
            callers=lambda: residency.callers,
            turn=partial(HostTurn, endpoint.name.rpartition(":")[0]),
        )
        meters.watch(made)
        return made

    residency = Residency(inner, endpoints, make, config.copies_of(), pinned=config.pinned)
    EndpointMeters.watch_waiting(at, endpoints.name, residency)
    endpoints.residency = residency
    return residency
