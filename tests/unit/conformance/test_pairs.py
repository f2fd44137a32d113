"""Client protocols before a model of an Open Inference server, cell by cell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from gateway.app.build.upstreams import chain_of_server
from gateway.app.chains.upstream import ServerTraits
from gateway.backends.python import PythonBackend
from gateway.backends.versions import Versions
from gateway.conformance.findings import PairFinding
from gateway.conformance.pairs import ClientForm, certify_pairs, client_forms
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor
from gateway.policies.complete.policy import Complete
from gateway.policies.signatures import DescribedModels
from gateway.routing.match import Rule
from gateway.routing.router import Route, Router
from gateway.service import Service
from gateway.settings.signature import SignatureConfig, TensorConfig
from gateway.settings.units import parse_url
from gateway.upstream import Upstream
from tests.memory_client import grpc_memory, http_memory, stream_memory

WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
MEMORY: dict[str, Any] = {"http": http_memory, "grpc": grpc_memory}
URL = parse_url("oip+grpc://127.0.0.1:8001")

BESIDE = ("request id", "request parameters", "parameters of inputs")
UNTYPED = ("datatypes of inputs", "datatypes of outputs")
ONE_ARRAY = (
    (
        "a client cannot write the call: the call has the inputs 'INPUT0', 'INPUT1', and a "
        "SeldonMessage carries one array"
    ),
)
NO_MODEL = "the gateway refuses the call: "
DEFAULT = "listeners[].default_model"
GRPS = (
    "loses",
    ("version of the reply", *BESIDE, "choice of outputs", "classes", "priority", "queue timeout"),
    "",
)
ROWS = (*UNTYPED, "version of the reply", *BESIDE, "choice of outputs", "classes", "priority")
TORCHSERVE = ("loses", (*ROWS, "queue timeout", "model metadata", "repository index"), "")

SIMPLE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "graphpipe+http": (
        "loses",
        ("version of the reply", *BESIDE, "classes", "priority", "queue timeout"),
        "",
    ),
    "graphpipe+tcp": (
        "refused",
        (
            (
                f"{NO_MODEL}a GraphPipe stream names no model: expected a default model "
                "(default_model)"
            ),
            (
                f"with this key, it loses: version of the reply, {', '.join(BESIDE)}, version, "
                "classes, priority, queue timeout, repository index"
            ),
        ),
        DEFAULT,
    ),
    "grps+http": GRPS,
    "grps+grpc": GRPS,
    "grps+brpc": GRPS,
    "mlflow+http": (
        "refused",
        (
            (
                f"{NO_MODEL}the request names no model, and no default model is configured "
                "(default_model of the listener)"
            ),
            (
                f"with this key, it loses: {', '.join(UNTYPED)}, version of the reply, request id, "
                "parameters of inputs, version, choice of outputs, classes, priority, queue timeout, "
                "model metadata, repository index"
            ),
        ),
        DEFAULT,
    ),
    "oip+http": ("works", (), ""),
    "oip+grpc": ("works", (), ""),
    "openai+http": (
        "refused",
        ("a client cannot write the call: the request has 2 inputs; expected 1 of BYTES",),
        "",
    ),
    "seldon+http": ("refused", ONE_ARRAY, ""),
    "seldon+grpc": ("refused", ONE_ARRAY, ""),
    "tfs+http": ("loses", (*ROWS, "queue timeout", "repository index"), ""),
    "tfs+grpc": (
        "loses",
        (*BESIDE, "classes", "priority", "queue timeout", "repository index"),
        "",
    ),
    "torchserve+http": TORCHSERVE,
    "torchserve+grpc": TORCHSERVE,
    "trtis+http": ("loses", (*UNTYPED, *BESIDE[1:], "priority", "queue timeout"), ""),
    "trtis+grpc": ("loses", (*UNTYPED, *BESIDE[1:]), ""),
}
"""What clients lose before a model with two inputs and outputs, of INT32, that batches."""


def form_of(name: str) -> ClientForm:
    """Return a client protocol by its name."""
    return next(form for form in client_forms() if form.name == name)


@asynccontextmanager
async def server(
    model: str, form: str = "oip+grpc", described: DescribedModels | None = None
) -> AsyncIterator[Service]:
    """Yield what sends calls to a server in memory, which runs one of the example models."""
    source = f"gateway.backends.examples:{model}"
    versions = Versions(model, [PythonBackend(model, source)])
    await versions.start()
    try:
        there = form_of(form)
        route = Route("own", Rule(model=model), Complete(versions, WHOLE))
        frontend: Any = Frontend(
            there.listener(model), Router((route,), versions, default_model=model)
        )
        codec = there.client()
        client = MEMORY.get(there.carrier, stream_memory)(frontend)
        traits = ServerTraits(codec.needs, there.spec.classifies, codec=codec)
        yield chain_of_server(Upstream("server", codec, client), traits, described=described)
    finally:
        await versions.stop()


async def pairs(
    model: str, form: str = "oip+grpc", models: tuple[str, ...] = ()
) -> list[PairFinding]:
    """Return what comes of all client protocols before a server with one model."""
    async with server(model, form) as service:
        url = parse_url(f"{form}://127.0.0.1:8001")
        return await certify_pairs(service, url, models or (model,))


async def test_each_protocol_has_its_cell() -> None:
    """Each client protocol works, loses by name, or is refused by name with the key."""
    found = await pairs("simple")
    assert {
        each.protocol: (str(each.verdict), tuple(each.what), each.key) for each in found
    } == SIMPLE
    assert {"simple"} == {each.model for each in found}


async def test_equal_servers_have_equal_tables() -> None:
    """A second and a third run find the same."""
    first = await pairs("identity_fp32")
    assert first == await pairs("identity_fp32")
    assert first == await pairs("identity_fp32")


@pytest.mark.parametrize("form", ["tfs+http", "tfs+grpc", "grps+grpc", "graphpipe+http"])
async def test_clients_of_the_own_protocol_lose_nothing(form: str) -> None:
    """What the server's own protocol does not carry is no loss."""
    found = {each.protocol: each for each in await pairs("simple", form)}
    assert ("works", ()) == (found[form].verdict, tuple(found[form].what))
    assert ("works", ()) == (found["oip+http"].verdict, tuple(found["oip+http"].what))


async def test_a_server_without_metadata_works_with_its_own_clients_and_a_key() -> None:
    """MLflow's own clients need no description, and the others get the key of one with its losses."""
    tensors = (TensorConfig(name="INPUT0", datatype="FP32", shape=(1,)),)
    outputs = (tensors[0].model_copy(update={"name": "OUTPUT0"}),)
    signature = SignatureConfig(inputs=tensors, outputs=outputs)
    names, url = ["identity_fp32"], parse_url("mlflow+http://127.0.0.1:5000")
    models = DescribedModels({names[0]: signature})
    async with (
        server(names[0], "mlflow+http") as plain,
        server(names[0], "mlflow+http", models) as known,
    ):
        unknown = await certify_pairs(plain, url, names)
        found = {each.protocol: each for each in await certify_pairs(plain, url, names, known)}
    assert ("works", ()) == (found["mlflow+http"].verdict, tuple(found["mlflow+http"].what))
    key = "models.NAME.signature"
    assert {("refused", key)} == {(each.verdict, each.key) for each in unknown}
    assert {"mlflow+http"} == found.keys() - {each.protocol for each in unknown}
    assert key == found["oip+http"].key
    assert "with this key, it loses: request parameters" in found["tfs+http"].what


async def test_unknown_models_are_refused_with_the_words_of_the_server() -> None:
    """Where the server itself refuses the call, no client protocol can work."""
    found = await pairs("simple", models=("other",))
    assert {"refused"} == {str(each.verdict) for each in found}
    assert all("model 'other'" in each.what[0] for each in found), found[0]
    assert all(each.what[0].startswith("there is no direct reply: ") for each in found)


async def test_huge_inputs_are_not_made() -> None:
    """A server whose metadata have huge shapes costs no memory."""
    huge = TensorMetadata("INPUT0", Datatype.FP32, (1 << 40, -1))

    async def service(_call: Any) -> Any:
        return ModelMetadata(name="huge", inputs=(huge,))

    found = await certify_pairs(service, URL, ["huge"])
    text = "its inputs have 1099511627776 elements: expected at most 4194304"
    assert {f"there is no direct reply: {text}"} == {each.what[0] for each in found}


async def test_values_are_not_compared_where_direct_replies_differ() -> None:
    """A model that counts its calls works, and the table says what it does not know."""
    calls = iter(range(1_000))

    async with server("identity_int64") as service:

        async def counting(call: Any) -> Any:
            reply = await service(call)
            if not isinstance(call, InferRequest):
                return reply
            value = reply.outputs[0]
            array = np.full(value.shape, next(calls), "<i8")
            return reply.changed(outputs=(array_tensor(value.name, array, Datatype.INT64),))

        found = await certify_pairs(counting, URL, ["identity_int64"])
    cell = next(each for each in found if each.protocol == "oip+http")
    assert ("works", ("values are not compared: two direct replies differ",)) == (
        cell.verdict,
        cell.what,
    )


async def through_gateway(form: str, model: str, inputs: Tensor) -> InferResponse:
    """Return the reply that a client of a protocol reads from a frontend, as it is."""
    here, replies = form_of(form), []
    client = here.client()
    async with server(model) as service:
        router = Router((Route("models", Rule(), service),), service)
        frontend: Any = Frontend(here.listener(), router)
        gateway = Upstream("gateway", client, MEMORY[here.carrier](frontend))

        async def end(call: Any) -> Any:
            if not isinstance(call, InferRequest):
                return await service(call)
            replies.append(await gateway(call))
            return replies[0]

        await Complete(end, client.needs)(InferRequest(model=ModelRef(model), inputs=(inputs,)))
    return replies[0]


async def test_a_loss_is_what_a_client_sees() -> None:
    """GraphPipe has no BF16: its client reads FP32 from a frontend, as the table says."""
    found = {each.protocol: each for each in await pairs("identity_bf16")}
    assert "datatype of output OUTPUT0: FP32 for BF16" in found["graphpipe+http"].what
    bits = array_tensor("INPUT0", np.array([0x3F80, 0x4049], "<u2"), Datatype.BF16)
    reply = await through_gateway("graphpipe+http", "identity_bf16", bits)
    assert [Datatype.FP32] == [each.datatype for each in reply.outputs]


async def test_a_refusal_is_what_a_client_sees() -> None:
    """A client of MLflow names no model, and a frontend refuses it with the text of the table."""
    found = {each.protocol: each for each in await pairs("identity_fp32")}
    ones = array_tensor("INPUT0", np.ones((1,), "<f4"), Datatype.FP32)
    with pytest.raises(GatewayError) as caught:
        await through_gateway("mlflow+http", "identity_fp32", ones)
    assert f"the gateway refuses the call: {caught.value.message}" == found["mlflow+http"].what[0]


async def test_replies_of_a_stream_are_compared_one_by_one() -> None:
    """Clients whose protocol has streams over gRPC get all replies; the others are refused."""
    async with server("repeat_stream") as service:

        async def several(call: Any) -> Any:
            reply = await service(call)
            if not isinstance(reply, ModelMetadata):
                return reply
            three = TensorMetadata("IN", Datatype.INT32, (3,))
            return reply.changed(inputs=(three,), decoupled=True)

        found = {
            each.protocol: each for each in await certify_pairs(several, URL, ["repeat_stream"])
        }
    works = {name: tuple(each.what) for name, each in found.items() if each.verdict == "works"}
    assert {"oip+grpc": ()} == works
    loses = {name for name, each in found.items() if each.verdict == "loses"}
    assert {"grps+grpc", "torchserve+grpc"} == loses
    assert "datatype of output IDX: INT64 for UINT32" in found["grps+grpc"].what
    assert "more than one response" in found["oip+http"].what[0]


async def test_stateful_models_get_a_sequence() -> None:
    """Clients whose protocol has sequences work, and the others are refused by name."""
    async with server("simple_sequence") as service:

        async def stateful(call: Any) -> Any:
            reply = await service(call)
            return reply.changed(stateful=True) if isinstance(reply, ModelMetadata) else reply

        found = await certify_pairs(stateful, URL, ["simple_sequence"])
    refused = {each.protocol for each in found if each.verdict == "refused"}
    assert {"oip+http", "oip+grpc", "trtis+http", "trtis+grpc"} == SIMPLE.keys() - refused
    reasons = [each.what[0] for each in found if each.verdict == "refused"]
    assert all("sequence" in reason for reason in reasons), reasons
