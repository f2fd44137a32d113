"""Sequences and regions of one client do not exist for another one."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import CallSequence, Client, Context, ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, RegionNotFound
from gateway.ir.identity import Identity
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.policies.access.apart import apart_by
from gateway.policies.access.owners import OwnRegions, OwnSequences, SequenceIds

MODEL = ModelRef("m")
CONTEXTS = {name: Context(client=Client(identity=Identity(name))) for name in ("one", "two")}


class Server:
    """Notes the ids of sequences, keeps regions by name, and fails with the text of a test."""

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self.regions: dict[str, SharedRegion] = {}
        self.error: GatewayError | None = None

    async def __call__(self, call: Call[Any]) -> Any:
        if self.error is not None:
            raise self.error
        if isinstance(call, SharedRegisterRequest):
            self.regions[call.region.name] = call.region
        elif isinstance(call, SharedUnregisterRequest):
            self.regions.pop(call.region, None)
        elif isinstance(call, SharedStatusRequest):
            return tuple(self.regions.values())
        elif isinstance(call, InferRequest):
            if call.sequence is not None:
                self.ids.append(call.sequence.id)
            for tensor in call.inputs:
                assert isinstance(tensor.data, SharedMemoryData)
                if tensor.data.region not in self.regions:
                    raise RegionNotFound(f"no region {tensor.data.region!r}")
            return InferResponse(model=MODEL, outputs=call.inputs)
        return None


def step(client: str, sequence_id: int | str, **edges: bool) -> InferRequest:
    """Return one request of a sequence."""
    sequence = CallSequence(sequence_id, **edges)
    return InferRequest(model=MODEL, context=CONTEXTS[client], sequence=sequence)


@pytest.mark.parametrize("sequence_id", [5, "five"])
async def test_equal_ids_of_two_clients_are_two_sequences(sequence_id: int | str) -> None:
    """Each client has an id of its own, and the same for its next sequence with this id."""
    server = Server()
    layer = OwnSequences(server, SequenceIds(600))
    await layer(step("one", sequence_id, start=True))
    await layer(step("two", sequence_id, start=True))
    await layer(step("two", sequence_id))
    await layer(step("one", sequence_id, end=True))
    await layer(step("two", sequence_id, end=True))
    await layer(step("two", sequence_id, start=True))
    one, two = server.ids[:2]
    assert [one, two, two, one, two, two] == server.ids
    assert 3 == len({one, two, sequence_id})


async def test_a_restarted_gateway_gave_a_client_the_sequence_of_another() -> None:
    """The ids are those of their clients in each process, whoever comes first."""
    servers = Server(), Server()
    for server, clients in zip(servers, (("one", "two"), ("two", "one")), strict=True):
        layer = OwnSequences(server, SequenceIds(600))
        for client in clients:
            await layer(step(client, 5))
    assert servers[0].ids == servers[1].ids[::-1]


async def test_ids_of_workers_are_those_of_their_client() -> None:
    """Without a common table each client has ids of its own, and the same in every process."""
    servers = Server(), Server()
    for server in servers:
        layer = OwnSequences(server, SequenceIds(600, is_divided=True))
        await layer(step("one", 5))
        await layer(step("two", 5))
    assert servers[0].ids == servers[1].ids
    assert len({5, *servers[0].ids}) == 3


async def test_errors_have_the_id_that_the_client_knows() -> None:
    """The id at the server stays within the gateway."""
    server = Server()
    layer = OwnSequences(server, SequenceIds(600))
    await layer(step("one", 5, start=True))
    await layer(step("two", 5))
    server.error = InvalidRequest(f"sequence {server.ids[-1]} must begin with START")
    with pytest.raises(InvalidRequest, match="sequence 5 must"):
        await layer(step("two", 5))


def sharing(client: str, region: str) -> InferRequest:
    """Return an inference with an input in shared memory."""
    data = SharedMemoryData(region, 0, 4)
    tensor = Tensor("x", Datatype.FP32, (1,), data)
    return InferRequest(model=MODEL, context=CONTEXTS[client], inputs=(tensor,))


async def test_a_region_exists_for_its_client_alone() -> None:
    """Another client neither sees, uses nor removes it, and has its own of the same name."""
    server = Server()
    layer = OwnRegions(server)
    region = SharedRegion(name="r", size_bytes=4, key="/k")
    await layer(SharedRegisterRequest(region=region, context=CONTEXTS["one"]))
    reply = await layer(sharing("one", "r"))
    assert isinstance(reply.outputs[0].data, SharedMemoryData)
    assert reply.outputs[0].data.region == "r"
    status = SharedStatusRequest(context=CONTEXTS["one"])
    assert (region,) == await layer(status)
    with pytest.raises(RegionNotFound, match="no region 'r'"):
        await layer(sharing("two", "r"))
    assert () == await layer(SharedStatusRequest(context=CONTEXTS["two"]))
    await layer(SharedUnregisterRequest(context=CONTEXTS["two"]))
    await layer(SharedUnregisterRequest(region="r", context=CONTEXTS["two"]))
    assert (region,) == await layer(status)
    await layer(SharedRegisterRequest(region=region, context=CONTEXTS["two"]))
    await layer(SharedUnregisterRequest(context=CONTEXTS["one"]))
    assert () == await layer(status)
    assert (region,) == await layer(SharedStatusRequest(context=CONTEXTS["two"]))


def test_groups_with_a_line_break_were_those_of_others() -> None:
    """Clients that share batches by group have the same groups, not the same joined text."""
    by_group = apart_by("group")
    assert by_group is not None
    sets = [{"a", "b"}, {"a\nb"}, {"a', 'b"}, {"a"}, set[str]()]
    texts = [
        by_group(
            InferRequest(context=Context(client=Client(identity=Identity("x", frozenset(each)))))
        )
        for each in sets
    ]
    assert len(sets) == len(set(texts))
