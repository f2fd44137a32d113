"""Clients' forms x upstreams x datatypes x shapes: bit by bit, or rejected.

Cells are generated from the registry: a protocol joins by being registered and by its entry in
`tests/properties/carries.py`.  Results are compared with numpy's.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from tests.matrix.cases import INFINITE, Case, cases
from tests.matrix.chains import gateway
from tests.matrix.clients import CLIENTS, Array, Client, Refused
from tests.matrix.refusals import REFUSALS, has_null_infinities, refusal
from tests.properties.carries import WAYS, Carries

STEP = len(Datatype)
BY_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
BY_UPSTREAM = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


@BY_CLIENT
@BY_UPSTREAM
async def test_identity_models_return_their_input(client: Client, way: Carries) -> None:
    """Each case of one datatype, and of each rule, returns as sent or is rejected by the rule."""
    for datatype in chosen(client, way):
        await returns_input(client, way, datatype)


@pytest.mark.slow
@BY_CLIENT
@BY_UPSTREAM
async def test_identity_models_return_inputs_of_every_datatype(
    client: Client, way: Carries
) -> None:
    """Each case of each datatype returns as it was sent, or is rejected with the text of the table."""
    for datatype in Datatype:
        await returns_input(client, way, datatype)


def chosen(client: Client, way: Carries) -> list[Datatype]:
    """Return the datatypes that are quick enough to try for a client before an upstream.

    Over all cells, each client and each upstream meets each datatype: a value passes one half of a
    codec, then another half that knows nothing of the first. Where both halves decide together, there
    is a rule: each rule that holds for a cell has a datatype.
    """
    start = CLIENTS.index(client) + WAYS.index(way)
    found = dict.fromkeys(list(Datatype)[-start % STEP :: STEP])
    rules = {refusal(client.name, way.name, case) for each in found for case in cases(each)}
    for datatype in Datatype:
        own = {refusal(client.name, way.name, case) for case in cases(datatype)}
        if own - rules:
            found[datatype] = None
            rules |= own
    return list(found)


def test_every_client_and_every_upstream_meets_every_datatype() -> None:
    """The quick cells have each pair of a client, an upstream and a datatype."""
    cells = [
        (client, way, each) for client in CLIENTS for way in WAYS for each in chosen(client, way)
    ]
    assert len(CLIENTS) * len(Datatype) == len({(client.name, each) for client, _, each in cells})
    assert len(WAYS) * len(Datatype) == len({(way.name, each) for _, way, each in cells})


async def returns_input(client: Client, way: Carries, datatype: Datatype) -> None:
    """Send each case of a datatype to a model that returns it."""
    model = model_of(client, way, f"identity_{datatype.name.lower()}")
    source = f"gateway.backends.examples:identity_{datatype.name.lower()}"
    needs_metadata = "trtis" in client.codec + way.codec
    for some in [[case] for case in cases(datatype)] if needs_metadata else [cases(datatype)]:
        metadata = metadata_of(model.name, datatype, some[0]) if needs_metadata else None
        async with gateway(client, way, model.name, source, metadata) as transport:
            for case in some:
                await check(client, way, transport, model, case)


async def check(client: Client, way: Carries, transport: Any, model: ModelRef, case: Case) -> None:
    """Send one case: it returns bit by bit, or is rejected with the text of the table."""
    inputs = {"INPUT0": (case.datatype, case.array)}
    rule = refusal(client.name, way.name, case)
    if rule is not None:
        with pytest.raises(Refused, match=rule.text) as caught:
            await client.infer(transport, model, inputs)
        assert rule.code is caught.value.code, case.name
        return
    found = await client.infer(transport, model, inputs)
    assert {"OUTPUT0"} == found.keys()
    expected = case.array
    if case.datatype is Datatype.BOOL:  # any byte but 0 is true for the model, which writes 1
        expected = expected.view("u1") != 0
    if INFINITE in case.traits and has_null_infinities(client.name, way.name):
        expected = np.where(np.isinf(expected), expected.dtype.type("nan"), expected)
    if "trtis" in client.codec + way.codec:
        expected = np.atleast_1d(expected)  # TensorRT v1 writes a scalar as one element
    assert bits_of(expected) == bits_of(found["OUTPUT0"]), case.name


def metadata_of(name: str, datatype: Datatype, case: Case) -> ModelMetadata:
    """Return metadata with the shape of a case: TensorRT v1 has no model of any rank."""
    shape = case.array.shape
    return ModelMetadata(
        name=name,
        max_batch_size=0,
        inputs=(TensorMetadata("INPUT0", datatype, shape),),
        outputs=(TensorMetadata("OUTPUT0", datatype, shape),),
    )


@pytest.mark.parametrize(
    ("client", "way"),
    [
        pytest.param(client, way, id=f"{way.name}-{client.name}")
        for (one, client), (other, way) in product(enumerate(CLIENTS), enumerate(WAYS))
        if (one + other) % 7 == 0
    ],
)
async def test_two_inputs_and_two_outputs_are_not_swapped(client: Client, way: Carries) -> None:
    """Sum and difference equal numpy's, for two clients or three before each upstream."""
    model = model_of(client, way, "simple")
    rng = np.random.default_rng(0)
    async with gateway(client, way, model.name, "gateway.backends.examples:simple") as transport:
        for batch in (1, 3):
            one, other = rng.integers(-(2**30), 2**30, (2, batch, 16), "<i4")
            inputs = {"INPUT0": (Datatype.INT32, one), "INPUT1": (Datatype.INT32, other)}
            found = await client.infer(transport, model, inputs)
            assert ["OUTPUT0", "OUTPUT1"] == list(found)
            assert bits_of(one + other) == bits_of(found["OUTPUT0"])
            assert bits_of(one - other) == bits_of(found["OUTPUT1"])


@pytest.mark.parametrize("rule", REFUSALS, ids=lambda rule: rule.text[:40])
def test_every_rejection_rule_is_used(rule: object) -> None:
    """Each rule is the first match of at least one cell."""
    assert any(
        rule is refusal(client.name, way.name, case)
        for client in CLIENTS
        for way in WAYS
        for datatype in Datatype
        for case in cases(datatype)
    )


def model_of(client: Client, way: Carries, name: str) -> ModelRef:
    """Return the model of the requests: *name*, or the only one that client or upstream can name."""
    return client.model or way.model or ModelRef(name)


def bits_of(array: Array) -> object:
    """Return what two arrays share exactly when they are the same bit by bit."""
    if array.dtype == object:
        return (array.shape, array.reshape(-1).tolist())
    return (array.shape, array.dtype.str, array.tobytes())
