"""SequenceIdTypes: rejects a sequence id whose type does not match the model's.

A model may receive its sequence ids in the control input CONTROL_SEQUENCE_CORRID, which has a
datatype. Triton writes a text id over a number without a check, and crashes or hangs.

Source: docs/protocols/open-inference.md, "9. Parameters and headers".
"""

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import ModelConfigRequest
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NotFound,
)
from gateway.service import Service

# An ensemble passes a sequence id to the models of its steps.
_MAX_STEPS = 64
_CORRELATION_ID = "CONTROL_SEQUENCE_CORRID"
_TEXT = "TYPE_STRING"


class IdType(enum.Enum):
    """The required type of a model's sequence ids."""

    ANY = "any"
    NUMBER = "a number"
    TEXT = "a string"
    UNKNOWN = "unknown"
    NO_MODEL = "no model"


class SequenceIdTypes:
    """Checks sequence ids against the model's configuration, which it caches.

    Args:
        allows_unknown: Whether the current call may have a text id if the upstream does not report
            the configuration.
        ttl_s: Time for which the type of a model's ids is cached.
        timeout_s: Timeout of the call for the configuration.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        allows_unknown: Callable[[], bool] = bool,
        ttl_s: float = 30.0,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allows_unknown = allows_unknown
        self._timeout_s = timeout_s
        self._clock = clock
        self._lookup: TtlLookup[ModelRef, IdType] = TtlLookup(
            self._look_up, ttl_s, ttl_s, clock=clock
        )

    async def check(self, model: ModelRef, sequence: CallSequence, upstream: Service) -> None:
        """Reject an id of the wrong type.

        Args:
            model: The model at *upstream*.
            sequence: The sequence of the request.
            upstream: Provides the configuration if it is not cached.

        Raises:
            InvalidRequest: The id has the wrong type, or is text and the required type is unknown.
            ModelNotFound: The id is text, and *upstream* does not know the model.
            GatewayError: The upstream is not available.
        """
        found = await self._lookup.get(model, upstream) or IdType.UNKNOWN
        is_text = isinstance(sequence.id, str)
        if found is (IdType.NUMBER if is_text else IdType.TEXT):
            raise InvalidRequest(
                f"the sequence id of model {str(model)!r} has the wrong type: it is "
                f"{'a string' if is_text else 'a number'}, the model needs {found.value}",
                model=model,
            )
        if not is_text or self._allows_unknown():
            return
        if found is IdType.NO_MODEL:
            raise ModelNotFound(f"model {str(model)!r} is unknown to its server", model=model)
        if found is IdType.UNKNOWN:
            raise InvalidRequest(
                f"the sequence id of model {str(model)!r} is a string, and its server does not "
                "show whether the model can have one: use a number (or set 'sequence_ids: text' "
                "for the route)",
                model=model,
            )

    def forget(self) -> None:
        """Discard all cached types, because a loaded model may be a step of others."""
        self._lookup.forget_all()

    async def _look_up(self, model: ModelRef, upstream: Service) -> IdType:
        try:
            return await self._type_of(model, upstream)
        except GatewayError as error:
            if error.is_retryable or isinstance(error, DeadlineExceeded):
                raise
            # The endpoint asks for the metadata too before it says that there is no such model.
            return IdType.NO_MODEL if isinstance(error, NotFound) else IdType.UNKNOWN

    async def _type_of(self, model: ModelRef, upstream: Service) -> IdType:
        pending, seen, types = [model], {model}, set[str]()
        context = Context(deadline=self._clock() + self._timeout_s)
        while pending:
            configuration = await upstream(ModelConfigRequest(model=pending.pop(), context=context))
            if configuration.is_withheld:
                return IdType.UNKNOWN
            types.update(_control_types(configuration.document))
            for step in _steps(configuration.document):
                if step not in seen:
                    seen.add(step)
                    pending.append(step)
            if len(seen) > _MAX_STEPS:
                return IdType.UNKNOWN
        if not types:
            return IdType.ANY
        return IdType.TEXT if types == {_TEXT} else IdType.NUMBER


def _control_types(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the data types of the inputs that receive sequence ids."""
    batching = document.get("sequence_batching")
    if not isinstance(batching, Mapping):
        return
    for control_input in _mappings(batching.get("control_input")):
        for control in _mappings(control_input.get("control")):
            if control.get("kind") == _CORRELATION_ID:
                yield str(control.get("data_type"))


def _steps(document: Mapping[str, Any]) -> Iterator[ModelRef]:
    """Yield the models of an ensemble's steps."""
    ensemble = document.get("ensemble_scheduling")
    if isinstance(ensemble, Mapping):
        for step in _mappings(ensemble.get("step")):
            yield ModelRef(str(step.get("model_name", "")))


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, Mapping):
            yield entry
