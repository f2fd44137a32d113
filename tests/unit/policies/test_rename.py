"""Rename: the target gets its own names, the caller sees public ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.bodies.streams import close_stream
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
from gateway.ir.errors import InvalidRequest, UpstreamProtocolError
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, as_numpy, as_raw
from gateway.policies.rename import Rename, TensorNamesConfig
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


async def test_request_and_reply_are_renamed() -> None:
    """The target gets its own names and the caller those it used; names can be swapped."""
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
    """A renamed tensor has the same data object."""
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
async def test_route_may_fix_the_version(
    fixed: str | None, version: str, sent: str, reported: str
) -> None:
    """A fixed version is sent to the target; the reply keeps the requested version."""
    service = ScriptedService(reply())
    found = await renaming(service, version=fixed)(request(model=ModelRef("public", version)))
    assert (ModelRef("inner", sent), ModelRef("public", reported)) == (
        service.calls[0].model,
        found.model,
    )


async def test_unchanged_call_and_reply_keep_their_wire_form() -> None:
    """A call or reply without renamed parts stays the same object, origin included."""
    origin = Origin("oip.http", b"wire")
    unchanged_reply = InferResponse(
        model=ModelRef("public", "7"), outputs=(tensor("z"),), origin=origin
    )
    service = ScriptedService(unchanged_reply)
    call = request("c").with_context(origin=origin)
    assert await Rename(service, inputs={"a": "b"}, outputs={"y": "OUT"})(call) is unchanged_reply
    assert service.calls[0] is call


async def test_changed_call_drops_its_wire_form() -> None:
    """Bytes with the old names cannot be forwarded."""
    service = ScriptedService(reply())
    await renaming(service)(request("c").with_context(origin=Origin("oip.http", b"wire")))
    assert service.calls[0].context.origin is None


async def test_two_inputs_with_one_name_are_rejected() -> None:
    """A caller cannot send an input under both of its names."""
    with pytest.raises(InvalidRequest, match="the request has input 'b' twice after renaming"):
        await renaming(ScriptedService(), inputs={"a": "b"})(request("a", "b"))


async def test_stream_request_and_replies_are_renamed() -> None:
    """Closing the renamed stream closes the inner one."""
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
async def test_metadata_have_the_callers_names(
    fixed: str | None, version: str, versions: tuple[str, ...]
) -> None:
    """Metadata contain the names and versions that the caller can use, labels included."""
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


async def test_model_calls_get_the_targets_name() -> None:
    """A readiness call has the target's name, and a server call is unchanged."""
    service = ScriptedService(True, True, True)
    rename = renaming(service)
    await rename(ModelReadyRequest(model=ModelRef("public")))
    await rename(ModelReadyRequest(model=ModelRef("inner")))
    await rename(ServerLiveRequest())
    assert [ModelRef("inner"), ModelRef("inner"), None] == [call.model for call in service.calls]


def test_two_names_for_one_target_name_are_rejected() -> None:
    """Such a mapping cannot be reversed."""
    with pytest.raises(ValueError, match="inputs: two names are mapped to the same name"):
        Rename(ScriptedService(), inputs={"a": "x", "b": "x"})


async def test_model_can_be_renamed_alone() -> None:
    """Without tensor names only the model's name changes."""
    service = ScriptedService(reply("OUT"))
    found = await Rename(service, model="inner")(request("a", outputs=(RequestedOutput("OUT"),)))
    call = request("a", model=ModelRef("inner"), outputs=(RequestedOutput("OUT"),))
    assert ([call], reply("OUT", model=ModelRef("public", "7"))) == (service.calls, found)


async def test_configuration_has_the_callers_names() -> None:
    """Only the names of the model and of renamed tensors change in the document."""
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


async def test_flat_members_are_renamed_like_inputs() -> None:
    """A member that may be an input gets the target's name; others keep theirs."""
    service = ScriptedService(reply())
    call = InferRequest(model=PUBLIC, flat_members={"a": "x", "temperature": 0.5})
    await renaming(service)(call)
    assert [InferRequest(model=ModelRef("inner"), flat_members={"b": "x", "temperature": 0.5})] == (
        service.calls
    )


async def test_flat_member_cannot_become_an_existing_input() -> None:
    """After renaming every name still belongs to one input."""
    call = request("c", flat_members={"a": 1})
    with pytest.raises(InvalidRequest, match="the request has input 'c' twice after renaming"):
        await renaming(ScriptedService(), inputs={"a": "c"})(call)


async def test_other_metadata_are_unchanged() -> None:
    """Renaming keeps the maximum batch size, stateful and decoupled."""
    found = ModelMetadata(name="inner", max_batch_size=4, stateful=True, decoupled=True)
    rename = Rename(ScriptedService(found), model="inner")
    reply = await rename(ModelMetadataRequest(model=ModelRef("outer")))
    assert found.changed(name="outer") == reply


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [
        ((-1,), (1, 1), (1,)),
        ((-1,), (5, 1), (5,)),
        ((-1, 1), (5,), (5, 1)),
        ((-1, 3), (2, 1, 3), (2, 3)),
        ((), (1,), ()),
        ((-1, 1), (0,), (0, 1)),
        ((2, 3), (2, 3), (2, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_raw", [False, True])
async def test_clients_get_outputs_in_the_shapes_of_the_configuration(
    wanted: tuple[int, ...], found: tuple[int, ...], expected: tuple[int, ...], is_raw: bool
) -> None:
    """Elements stay the same; the name is that of the client, and other outputs keep their shape."""
    output = array_tensor("OUT", np.zeros(found, np.float32))
    if is_raw:
        output = Tensor("OUT", output.datatype, found, RawData(as_raw(output)))
    other = tensor("other")
    service = ScriptedService(InferResponse(model=INNER, outputs=(output, other)))
    renamed = await renaming(service, shapes={"y": wanted})(request("a"))
    restored = renamed.outputs[0]
    assert ("y", expected, expected) == (restored.name, restored.shape, as_numpy(restored).shape)
    assert renamed.outputs[1] == other


async def test_an_output_of_another_shape_is_no_reply() -> None:
    """Only axes of size 1 may come and go: the elements of other axes would change their places."""
    output = array_tensor("y", np.zeros((2, 3), np.float32))
    service = ScriptedService(InferResponse(model=INNER, outputs=(output,)))
    with pytest.raises(UpstreamProtocolError, match=r"'y' has shape \[2, 3\]; expected \[-1\]"):
        await Rename(service, shapes={"y": (-1,)})(request("a"))


async def test_metadata_have_the_shapes_of_the_configuration() -> None:
    """A client that asks for the metadata finds what the replies have."""
    declared = TensorMetadata("OUT", Datatype.FP32, (-1, 1))
    service = ScriptedService(ModelMetadata(name="inner", outputs=(declared,)))
    found = await renaming(service, shapes={"y": (-1,)})(ModelMetadataRequest(model=PUBLIC))
    assert (TensorMetadata("y", Datatype.FP32, (-1,)),) == found.outputs


def test_a_shape_has_one_free_axis_at_most() -> None:
    """With two of them, the sizes would be ambiguous."""
    assert TensorNamesConfig(shapes={"y": (-1, 3)}).shapes == {"y": (-1, 3)}
    with pytest.raises(ValueError, match="expected at most one -1"):
        TensorNamesConfig(shapes={"y": (-1, -1)})
