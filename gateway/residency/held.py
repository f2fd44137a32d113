"""References to models at their endpoints, and streams that hold one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.streams import close_stream
from gateway.ir.unread import failure_of
from gateway.residency.controller import ResidencyController
from gateway.residency.plan import Resident
from gateway.routing.endpoint import Endpoint

R = TypeVar("R")

GONE: Final = frozenset({ErrorCode.NOT_FOUND, ErrorCode.NOT_READY, ErrorCode.UNAVAILABLE})
"""Errors by which servers reply to calls of models that they do not hold."""


@dataclass(slots=True, eq=False)
class HeldModel:
    """A reference to a model at one endpoint."""

    home: Home
    model: Resident

    def release(self) -> None:
        """Give it back."""
        self.home.controller.release(self.model)


@dataclass(slots=True, eq=False)
class Home:
    """An endpoint with what keeps its models."""

    endpoint: Endpoint
    controller: ResidencyController


class Sender(Protocol):
    """The layer, as its streams see it."""

    async def send(self, call: Call[R], resends: int = ..., /) -> R:
        """Send a call to an endpoint that holds its model."""

    async def is_gone(self, held: HeldModel, call: Call[Any], /) -> bool:
        """Return whether the server does not hold the model of a call, which can be repeated."""

    def end_call(
        self, held: HeldModel, sequence: CallSequence | None, /, *, is_lost: bool = False
    ) -> None:
        """Give back the reference of a call."""


class HeldStream:
    """The replies of a stream, which hold a reference; sent again if its model was gone."""

    def __init__(
        self,
        residency: Sender,
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
        if not isinstance(error, GatewayError) or error.code not in GONE:
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
