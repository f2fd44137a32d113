"""Tests of SequenceIdTypes: ids of sequences have the type that the model needs."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import InvalidRequest, ModelNotFound, NotFound, Unavailable, UpstreamError
from gateway.ir.metadata import ModelConfiguration
from gateway.model_info.sequence_ids import SequenceIdTypes
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from tests.fakes import FakeClock, ScriptedService

M = ModelRef("m")
REPLY = InferResponse(model=M, outputs=())


def configuration(data_type: str | None) -> ModelConfiguration:
    """Return the configuration of a model with ids of *data_type*, or without ids."""
    controls: list[Any] = [{"name": "START", "control": [{"int32_false_true": [0, 1]}]}]
    if data_type is not None:
        control = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": data_type}
        controls.append({"name": "CORRID", "control": [control]})
    return ModelConfiguration({"name": "m", "sequence_batching": {"control_input": controls}})


def before(server: Any, *, allows_unknown: bool = False, **settings: Any) -> Endpoints:
    """Return an upstream of one endpoint that checks ids."""
    types = SequenceIdTypes(allows_unknown=lambda: allows_unknown, **settings)
    return Endpoints("up", [Endpoint("e", server)], sequence_ids=types)


class Server:
    """A server with a configuration, or an error, for each model."""

    def __init__(self, **models: ModelConfiguration | Exception) -> None:
        self.models = models
        self.config_calls: list[str] = []
        self.inferred: list[Any] = []

    async def __call__(self, call: Any, /) -> Any:
        if isinstance(call, ModelConfigRequest):
            assert call.model is not None
            self.config_calls.append(call.model.name)
            found = self.models[call.model.name]
            if isinstance(found, Exception):
                raise found
            return found
        self.inferred.append(call)
        return REPLY


def sequence_request(sequence_id: int | str) -> InferRequest:
    """Return a request of a sequence."""
    return InferRequest(model=M, sequence=CallSequence(sequence_id, start=True))


@pytest.mark.parametrize(
    ("data_type", "sequence_id"),
    [("TYPE_UINT64", 7), ("TYPE_INT32", 7), ("TYPE_STRING", "seven"), (None, 7), (None, "seven")],
)
async def test_ids_of_the_right_type_are_accepted(
    data_type: str | None, sequence_id: int | str
) -> None:
    """A model without an id input accepts both types."""
    server = Server(m=configuration(data_type))
    call = sequence_request(sequence_id)
    assert REPLY == await before(server)(call)
    assert [call] == server.inferred


@pytest.mark.parametrize(
    ("data_type", "sequence_id"), [("TYPE_UINT64", "seven"), ("TYPE_STRING", 7)]
)
async def test_ids_of_the_wrong_type_are_rejected(data_type: str, sequence_id: int | str) -> None:
    """A text id crashes a Triton whose model has numeric ids (core 425)."""
    server = Server(m=configuration(data_type))
    check = before(server, allows_unknown=True)
    with pytest.raises(InvalidRequest, match="has the wrong type"):
        await check(sequence_request(sequence_id))
    with pytest.raises(InvalidRequest, match="has the wrong type"):
        await check(StreamInferRequest(model=M, request=sequence_request(sequence_id)))
    assert [] == server.inferred


async def test_the_steps_of_an_ensemble_are_checked_too() -> None:
    """An ensemble passes the id on to its steps."""
    steps = [{"model_name": "inner"}, {"model_name": "m"}]
    ensemble = ModelConfiguration({"ensemble_scheduling": {"step": steps}})
    server = Server(m=ensemble, inner=configuration("TYPE_UINT64"))
    with pytest.raises(InvalidRequest, match="the model needs a number"):
        await before(server)(sequence_request("seven"))
    assert ["m", "inner"] == server.config_calls


@pytest.mark.parametrize(
    "found", [UpstreamError("no"), ModelConfiguration({}, is_withheld=True)], ids=["error", "none"]
)
async def test_text_ids_are_rejected_where_the_type_is_unknown(
    found: ModelConfiguration | Exception,
) -> None:
    """The route may allow them; numbers are accepted."""
    server = Server(m=found)
    check = before(server)
    with pytest.raises(InvalidRequest, match="sequence_ids: text"):
        await check(sequence_request("seven"))
    assert REPLY == await check(sequence_request(7))
    assert REPLY == await before(server, allows_unknown=True)(sequence_request("seven"))


async def test_a_text_id_hid_an_unknown_model() -> None:
    """The unknown model is reported before its ids, as by Triton; the server checks the rest."""
    server = Server(m=NotFound("no m"))
    check = before(server)
    with pytest.raises(ModelNotFound, match="model 'm' is unknown to its server"):
        await check(sequence_request("seven"))
    assert REPLY == await check(sequence_request(7))
    assert REPLY == await before(server, allows_unknown=True)(sequence_request("seven"))


async def test_an_unreachable_server_is_called_again() -> None:
    """Its error is raised, and not cached."""
    server = Server(m=Unavailable("gone"))
    check = before(server)
    with pytest.raises(Unavailable, match="gone"):
        await check(sequence_request("seven"))
    server.models["m"] = configuration("TYPE_STRING")
    assert REPLY == await check(sequence_request("seven"))


async def test_configurations_are_cached() -> None:
    """A configuration is cached for `ttl_s`, and until a model is loaded."""
    clock = FakeClock()
    server = Server(m=configuration("TYPE_UINT64"))
    types = SequenceIdTypes(ttl_s=30, clock=clock)
    service = Endpoints("up", [Endpoint("e", server)], sequence_ids=types)
    for _ in range(3):
        await service(sequence_request(7))
    assert ["m"] == server.config_calls
    types.forget()
    await service(sequence_request(7))
    clock.advance(31)
    await service(sequence_request(7))
    assert ["m"] * 3 == server.config_calls


async def test_calls_without_a_sequence_are_not_checked() -> None:
    """They cause no further call."""
    inner = ScriptedService(always=REPLY)
    await before(inner)(InferRequest(model=M))
    assert [InferRequest(model=M)] == inner.calls
