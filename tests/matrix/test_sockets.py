"""The matrix over sockets of both makes: every client's form before every codec of an upstream.

Values are tested in `test_matrix.py`; in this file tensors of a few bytes, and of more than
a window of HTTP/2 holds, cross two hops of real connections.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gateway.ir.tensors.datatypes import Datatype
from gateway.transports.choice import TransportImplementation
from tests.matrix.cases import Case
from tests.matrix.chains import gateway
from tests.matrix.clients import CLIENTS, Client
from tests.matrix.sockets import over_sockets
from tests.matrix.test_matrix import check, metadata_of, model_of
from tests.properties.carries import WAYS, Carries
from tests.properties.registered import CARRIERS

ONE_OF_EACH = tuple({way.codec: way for way in WAYS}.values())
MAKES: tuple[TransportImplementation, ...] = ("native", "reference")
BY_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def _ways(number: int) -> list[Carries]:
    """Return an upstream of each carrier, with other codecs for each number."""
    carriers = {
        carrier: [way for way in ONE_OF_EACH if way.registered.carrier == carrier]
        for carrier in CARRIERS
    }
    return [ways[number % len(ways)] for ways in carriers.values()]


def _case(name: str, elements: int) -> Case:
    values = np.arange(elements, dtype="<f4").reshape(1, elements) / 3
    return Case(name, Datatype.FP32, values)


SMALL, LARGE = _case("small", 5), _case("larger than a window", 20_000)
FRAMES = _case("larger than a frame", 300_000)


async def _cross(make: TransportImplementation, client: Client, way: Carries, *cases: Case) -> None:
    model = model_of(client, way, "identity_fp32")
    needs_metadata = "trtis" in client.codec + way.codec
    for some in [[case] for case in cases] if needs_metadata else [list(cases)]:
        metadata = metadata_of(model.name, Datatype.FP32, some[0]) if needs_metadata else None
        source = "gateway.backends.examples:identity_fp32"
        join = partial(over_sockets, make)
        async with gateway(client, way, model.name, source, metadata, join=join) as transport:
            for case in some:
                await check(client, way, transport, model, case)


@pytest.mark.parametrize(
    ("make", "client", "way"),
    [
        pytest.param(make, client, way, id=f"{make}-{client.name}-{way.name}")
        for make in MAKES
        for client in CLIENTS
        for way in _ways(MAKES.index(make) + CLIENTS.index(client))
    ],
)
async def test_every_client_and_codec_works_over_sockets(
    make: TransportImplementation, client: Client, way: Carries
) -> None:
    """Tensors smaller and larger than a flow-control window return bit by bit, over each carrier."""
    await _cross(make, client, way, SMALL, LARGE)


@pytest.mark.slow
@BY_CLIENT
@pytest.mark.parametrize(
    ("make", "way"),
    [
        pytest.param(make, way, id=f"{make}-{way.name}")
        for make, ways in zip(MAKES, (WAYS, ONE_OF_EACH), strict=True)
        for way in ways
    ],
)
async def test_large_tensors_are_forwarded_over_sockets(
    make: TransportImplementation, client: Client, way: Carries
) -> None:
    """Tensors of more than a megabyte return bit by bit, over the native transports in any dialect."""
    await _cross(make, client, way, SMALL, FRAMES)


def test_the_short_run_has_every_codec() -> None:
    """The short run has every codec of the registry that carries tensors, on each implementation."""
    for start in range(len(MAKES)):
        codecs = {way.codec for number in range(len(CLIENTS)) for way in _ways(start + number)}
        assert {way.codec for way in WAYS} == codecs
