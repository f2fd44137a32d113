"""The suites of the own protocols take in the protocol of an installed package.

`tests/hostile/test_package.py` does so for hostile requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gateway.ir.context import ModelRef
from gateway.ir.errors import ERROR_CLASSES
from gateway.ir.tensors.datatypes import Datatype
from gateway.registry import protocol
from gateway.wire.http import HttpRequest
from tests.extension.kit import importable, install_toy
from tests.extension.toy_carries import TOY
from tests.matrix import test_errors as matrix_errors
from tests.matrix.cases import cases
from tests.matrix.chains import gateway
from tests.matrix.clients import CLIENTS, Array, Client, Sent
from tests.matrix.test_matrix import check, metadata_of, model_of
from tests.properties import test_codecs, test_damage, test_errors
from tests.properties.carries import WAYS, Carries
from tests.properties.registered import REGISTERED, Registered, arrived

BY_UPSTREAM = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
BY_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
VECTORS = [case for case in cases(Datatype.INT64) if case.array.ndim == 1]


@pytest.fixture(scope="module", autouse=True)
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The codec of the package, found by its entry point, beside those of the registry."""
    site = tmp_path_factory.mktemp("site")
    install_toy(site)
    with importable(site), pytest.MonkeyPatch.context() as patch:
        found = Registered(TOY.codec, "http", protocol("toy"))
        patch.setitem(REGISTERED, TOY.codec, found)
        yield found


class ToyClient:
    """A client of the protocol, by hand, so that one half of the codec does not vouch for the other."""

    name = codec = TOY.codec
    listener: Mapping[str, Any] = {}
    model = None

    async def infer(
        self, transport: Any, model: ModelRef, inputs: Mapping[str, Sent]
    ) -> dict[str, Array]:
        """Send the one input, and return the one output."""
        ((_, array),) = inputs.values()
        body = " ".join(map(str, array.tolist())).encode()
        wire = HttpRequest("POST", f"/toy/{model.name}", body=(body,))
        response = await transport.send(wire, deadline=None)
        assert 200 == response.status, bytes(response.view)
        return {"OUTPUT0": np.array(bytes(response.view).split(), "<i8")}


async def returns_vectors(client: Client, way: Carries) -> None:
    """Send each vector of integers to a model that returns it."""
    model = model_of(client, way, "identity_int64")
    source = "gateway.backends.examples:identity_int64"
    for case in VECTORS:
        metadata = metadata_of(model.name, case.datatype, case)
        async with gateway(client, way, model.name, source, metadata) as transport:
            await check(client, way, transport, model, case)


@BY_UPSTREAM
async def test_its_clients_reach_every_upstream(way: Carries) -> None:
    """Vectors of integers return bit by bit."""
    await returns_vectors(ToyClient(), way)


@BY_CLIENT
async def test_every_client_reaches_its_upstreams(client: Client) -> None:
    """Vectors of integers return bit by bit."""
    await returns_vectors(client, TOY)


@BY_UPSTREAM
def test_errors_cross_between_it_and_every_protocol(way: Carries) -> None:
    """Each error of the one reaches a client of the other as the rules of the other say."""
    for front, behind in ((TOY, way), (way, TOY)):
        for kind in ERROR_CLASSES.values():
            wire = matrix_errors.listener(behind).encode_error(
                matrix_errors.CALL, kind(matrix_errors.TEXT)
            )
            matrix_errors.check_crossing(front, behind, arrived(wire))


def test_its_calls_and_replies_round_trip() -> None:
    """What is drawn within its carries is read as it was written, in both directions."""
    with asyncio.Runner() as runner:
        test_codecs.test_calls_and_replies_round_trip(run=runner.run, way=TOY)


def test_its_damaged_messages_decode_or_are_rejected() -> None:
    """Damage of any kind leads to a value or to a `GatewayError`."""
    test_damage.test_damaged_messages_decode_or_are_rejected(ways=[TOY])
    test_damage.test_every_prefix_decodes_or_is_rejected(TOY)
    test_damage.test_every_flipped_bit_decodes_or_is_rejected(TOY)


def test_its_errors_can_be_encoded(toy: Registered) -> None:
    """An error without a call can be encoded, whatever its code and text."""
    test_errors.test_errors_of_undecodable_requests_can_be_encoded(toy)
