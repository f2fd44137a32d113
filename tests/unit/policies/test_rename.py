"""Rename: the target's names inside, the caller's outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.streams import close_stream
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor
from gateway.policies.rename import Rename
from tests.fakes import FakeStream, ScriptedService

X = np.array([1, 2], np.int32)
PUBLIC, INNER = ModelRef("public"), ModelRef("inner", "7")


def tensor(name: str) -> Tensor:
    return array_tensor(name, X)


def request(*inputs: str, model: ModelRef = PUBLIC, **fields: Any) -> InferRequest:
    return InferRequest(model=model, inputs=tuple(map(tensor, inputs)), **fields)


def reply(*outputs: str, model: ModelRef = INNER) -> InferResponse:
    return InferResponse(model=model, outputs=tuple(map(tensor, outputs)))


def renaming(service: ScriptedService, **names: Any) -> Rename:
    names = {"model": "inner", "inputs": {"a": "b", "b": "a"}, "outputs": {"y": "OUT"}} | names
    return Rename(service, **names)


async def test_request_and_reply_are_renamed_both_ways() -> None:
    """The target sees its own names, the caller sees those it used; swapped names work."""
    service = ScriptedService(reply("OUT", "other"))
    call = request(
        "a", "b", "c", outputs=(RequestedOutput("y", 3, {"k": 1}), RequestedOutput("other"))
    )
    found = await renaming(service)(call)
    assert [
        request(
            "b",
            "a",
            "c",
            model=ModelRef("inner"),
            outputs=(RequestedOutput("OUT", 3, {"k": 1}), RequestedOutput("other")),
        )
    ] == service.calls
    assert reply("y", "other", model=ModelRef("public", "7")) == found


async def test_renaming_shares_the_data() -> None:
    """Only the names are new."""
    service = ScriptedService(reply("OUT"))
    call = request("a")
    await renaming(service)(call)
    sent = service.calls[0]
    assert isinstance(sent, InferRequest)
    assert sent.inputs[0].data is call.inputs[0].data


@pytest.mark.parametrize(
    ("fixed", "version", "sent", "reported"),
    [
        (None, "", "", "7"),
        (None, "2", "2", "2"),
        ("7", "", "7", "7"),
        ("7", "2", "7", "2"),
        ("", "2", "", "2"),
    ],
)
async def test_versions(fixed: str | None, version: str, sent: str, reported: str) -> None:
    """A route may fix the version; the answer has the version that was asked for."""
    service = ScriptedService(reply())
    found = await renaming(service, version=fixed)(request(model=ModelRef("public", version)))
    assert (ModelRef("inner", sent), ModelRef("public", reported)) == (
        service.calls[0].model,
        found.model,
    )


async def test_what_needs_no_renaming_keeps_its_wire_form() -> None:
    """A call or an answer that stays the same stays itself, origin included."""
    origin = Origin("oip.http", b"wire")
    answer = InferResponse(model=ModelRef("public", "7"), outputs=(tensor("z"),), origin=origin)
    service = ScriptedService(answer)
    call = request("c").with_context(origin=origin)
    assert await Rename(service, inputs={"a": "b"}, outputs={"y": "OUT"})(call) is answer
    assert service.calls[0] is call


async def test_changed_call_drops_its_wire_form() -> None:
    """Stale bytes cannot be forwarded under another name."""
    service = ScriptedService(reply())
    await renaming(service)(request("c").with_context(origin=Origin("oip.http", b"wire")))
    assert service.calls[0].context.origin is None


async def test_two_inputs_of_one_name_are_refused() -> None:
    """A caller that knows both names cannot make the target see one twice."""
    with pytest.raises(InvalidRequest, match="the request has input 'b' twice after renaming"):
        await renaming(ScriptedService(), inputs={"a": "b"})(request("a", "b"))


async def test_streams_are_renamed_item_by_item() -> None:
    """The request in a stream is renamed, and each of its answers is."""
    stream = FakeStream([reply("OUT"), reply("OUT")])
    service = ScriptedService(stream)
    items = await renaming(service)(
        StreamInferRequest(model=ModelRef("public"), request=request("a"))
    )
    expected = reply("y", model=ModelRef("public", "7"))
    assert [expected, expected] == [item async for item in items]
    await close_stream(items)
    assert 1 == stream.closed
    inner = request("b", model=ModelRef("inner"))
    assert [StreamInferRequest(model=ModelRef("inner"), request=inner)] == service.calls


@pytest.mark.parametrize(
    ("fixed", "version", "versions"),
    [(None, "", ("6", "7")), ("7", "", ("7",)), ("7", "2", ("2",))],
)
async def test_metadata_is_in_the_callers_names(
    fixed: str | None, version: str, versions: tuple[str, ...]
) -> None:
    """Metadata shows what the caller can use, labels included."""
    int32 = Datatype.INT32
    inner = ModelMetadata(
        name="inner",
        versions=("6", "7"),
        platform="p",
        inputs=(TensorMetadata("b", int32, (1,)), TensorMetadata("c", int32, None)),
        outputs=(TensorMetadata("OUT", int32, (2,)),),
        max_batch_size=8,
        labels={"OUT": ("no", "yes"), "z": ()},
    )
    service = ScriptedService(inner)
    rename = renaming(service, version=fixed)
    call = ModelMetadataRequest(model=ModelRef("public", version), context=Context(protocol="p"))
    assert ModelMetadata(
        name="public",
        versions=versions,
        platform="p",
        inputs=(TensorMetadata("a", int32, (1,)), TensorMetadata("c", int32, None)),
        outputs=(TensorMetadata("y", int32, (2,)),),
        max_batch_size=8,
        labels={"y": ("no", "yes"), "z": ()},
    ) == await rename(call)
    assert ("inner", "p") == (
        getattr(service.calls[0].model, "name", None),
        service.calls[0].context.protocol,
    )


async def test_other_calls_get_the_models_name_or_pass() -> None:
    """Readiness is asked under the target's name; questions to the server pass."""
    service = ScriptedService(True, True, True)
    rename = renaming(service)
    await rename(ModelReadyRequest(model=ModelRef("public")))
    await rename(ModelReadyRequest(model=ModelRef("inner")))
    await rename(ServerLiveRequest())
    assert [ModelRef("inner"), ModelRef("inner"), None] == [call.model for call in service.calls]


def test_two_names_for_one_are_a_mistake() -> None:
    """Names could not be turned back."""
    with pytest.raises(ValueError, match="inputs: two names are mapped to the same name"):
        Rename(ScriptedService(), inputs={"a": "x", "b": "x"})


async def test_model_alone_is_renamed() -> None:
    """Without tensor names only the model's name changes."""
    service = ScriptedService(reply("OUT"))
    found = await Rename(service, model="inner")(request("a", outputs=(RequestedOutput("OUT"),)))
    call = request("a", model=ModelRef("inner"), outputs=(RequestedOutput("OUT"),))
    assert ([call], reply("OUT", model=ModelRef("public", "7"))) == (service.calls, found)


async def test_configuration_is_under_the_callers_names() -> None:
    """The model and the tensors that are renamed; the rest of the document is the target's."""
    document = {
        "name": "inner",
        "max_batch_size": 4,
        "input": [{"name": "X", "dims": [1]}, {"name": "W"}],
        "output": [{"name": "Y"}],
    }
    service = ScriptedService(ModelConfiguration(document))
    rename = Rename(service, model="inner", inputs={"a": "X"}, outputs={"b": "Y"})
    found = await rename(ModelConfigRequest(model=ModelRef("outer")))
    assert {
        "name": "outer",
        "max_batch_size": 4,
        "input": [{"name": "a", "dims": [1]}, {"name": "W"}],
        "output": [{"name": "b"}],
    } == found.document
    assert [ModelRef("inner")] == [call.model for call in service.calls]


async def test_members_are_renamed_as_inputs_are() -> None:
    """What may be an input has the target's name for it; what is none keeps its own."""
    service = ScriptedService(reply())
    call = InferRequest(model=PUBLIC, flat_members={"a": "x", "temperature": 0.5})
    await renaming(service)(call)
    assert [InferRequest(model=ModelRef("inner"), flat_members={"b": "x", "temperature": 0.5})] == (
        service.calls
    )


async def test_a_member_may_not_become_an_input_that_is_there() -> None:
    """After renaming every name is still one input."""
    call = request("c", flat_members={"a": 1})
    with pytest.raises(InvalidRequest, match="the request has input 'c' twice after renaming"):
        await renaming(ScriptedService(), inputs={"a": "c"})(call)


async def test_what_a_model_is_stays_what_it_is() -> None:
    """Stateful, decoupled, its largest batch: another name changes none of it."""
    found = ModelMetadata(name="inner", max_batch_size=4, stateful=True, decoupled=True)
    rename = Rename(ScriptedService(found), model="inner")
    reply = await rename(ModelMetadataRequest(model=ModelRef("outer")))
    assert found.changed(name="outer") == reply
