"""The frontend for a path, and the form in which it is called."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import HttpFrontend, HttpMount
from gateway.transports.http.faults import HttpError
from gateway.transports.http.path_router import PathRouter
from gateway.wire.heads.path_claims import Passing
from gateway.wire.http import Headers, HttpRequest, HttpResponse


class Streaming(HttpFrontend):
    """A frontend that replies as an async generator."""

    async def __call__(self, _wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        yield HttpResponse(200)

    def reject(self, error: GatewayError, /) -> HttpResponse:
        raise error


class Single(Streaming):
    """A frontend that can also return its single response."""

    async def handle(self, _wire: HttpRequest) -> HttpResponse:
        return HttpResponse(201)


class Other(Streaming):
    """A frontend that stands for the server behind."""

    async def handle(self, _wire: HttpRequest) -> HttpResponse:
        return HttpResponse(202)


class Claiming(Other):
    """The server behind, which is known to have some paths."""

    def claims(self, wire: HttpRequest, /) -> bool:
        return "theirs" in wire.path

    async def offer(self, wire: HttpRequest, /) -> HttpResponse | None:
        return HttpResponse(203) if "theirs" in wire.path else None


STREAMING, SINGLE = Streaming(), Single()
TABLE = PathRouter([HttpMount(("/v2",), STREAMING), HttpMount(("/v2/models/",), SINGLE)], None)


@pytest.mark.parametrize(
    ("path", "frontend"), [("/v2", STREAMING), ("/v2/modelsx", STREAMING), ("/v2/models/m", SINGLE)]
)
def test_the_longest_prefix_wins(path: str, frontend: Streaming) -> None:
    """A prefix claims itself and the paths below it; the longest match counts."""
    assert frontend is TABLE.find(path)[0]


def test_an_unclaimed_path_is_not_found() -> None:
    """The response is 404, for every request."""
    for _ in range(2):
        with pytest.raises(HttpError) as caught:
            TABLE.find("/v3")
        assert 404 == caught.value.response.status


async def test_a_frontend_is_called_in_the_form_that_it_has() -> None:
    """A frontend with `handle` returns one response; any other returns its generator."""
    wire = HttpRequest("GET", "/v2")
    single = await TABLE.find("/v2/models/m")[1](wire)
    many = await TABLE.find("/v2")[1](wire)
    assert HttpResponse(201) == single
    assert isinstance(many, AsyncGenerator)
    assert [HttpResponse(200)] == [response async for response in many]


def test_a_mount_serves_the_root_unless_another_claims_it() -> None:
    """It serves "/" but no other path below it; a fallback or a mount at "/" has precedence."""
    mounts = [HttpMount(("/grps",), SINGLE, root=True), HttpMount(("/v2",), STREAMING)]
    router = PathRouter(mounts, None)
    assert SINGLE is router.find("/")[0]
    with pytest.raises(HttpError, match="nothing is served at '/other'"):
        router.find("/other")
    assert STREAMING is PathRouter(mounts, STREAMING).find("/")[0]
    assert STREAMING is PathRouter([*mounts, HttpMount(("/",), STREAMING)], None).find("/")[0]


async def test_other_methods_of_read_only_paths_go_to_the_fallback() -> None:
    """GET belongs to the frontend; POST belongs to the server behind, but not in disguise."""
    mount = HttpMount(("/v1/models",), SINGLE, passes={"/v1/models": Passing.WRITES})
    other = Other()
    table = PathRouter([mount, HttpMount(("/v2",), STREAMING)], other)
    statuses = {}
    for method, path in [
        ("GET", "/v1/models/m"),
        ("POST", "/v1/models/m:predict"),
        ("POST", "/v1/models/m%3Apredict"),
        ("POST", "/v1/models/../../v2/x"),
    ]:
        _, ask = table.find(path)
        response = await ask(HttpRequest(method, path))
        assert isinstance(response, HttpResponse)
        statuses[method, path] = response.status
    assert [201, 202, 202, 201] == list(statuses.values())
    _, ask = PathRouter([mount], None).find("/v1/models/m:predict")
    response = await ask(HttpRequest("POST", "/v1/models/m:predict"))
    assert isinstance(response, HttpResponse)
    assert 201 == response.status


def test_whole_paths_come_before_prefixes() -> None:
    """A whole path below another mount's prefix is served by its own mount, and nothing below it."""
    mounts = [HttpMount(("/v2",), STREAMING), HttpMount((), SINGLE, exact=("/v2/predict", "/"))]
    router = PathRouter(mounts, None)
    assert SINGLE is router.find("/v2/predict")[0]
    assert SINGLE is router.find("/")[0]
    assert STREAMING is router.find("/v2/predict/more")[0]


async def test_requests_that_the_fallback_claims_go_to_it() -> None:
    """A server behind the fallback keeps the requests that it is known to have."""
    mount = HttpMount(("/v1/models",), SINGLE, passes={"/v1/models": Passing.NAMED})
    table = PathRouter([mount], Claiming())
    statuses = []
    for path in ("/v1/models/theirs:predict", "/v1/models/ours:predict"):
        _, ask = table.find(path)
        response = await ask(HttpRequest("POST", path))
        assert isinstance(response, HttpResponse)
        statuses.append(response.status)
    assert [202, 201] == statuses


@pytest.mark.parametrize(
    ("passes", "fallback", "expected"),
    [
        (Passing.UNKEYED, Other(), [202, 201, 201, 201]),
        (Passing.READ, Other(), [202, 202, 201, 201]),
        (Passing.UNKEYED, Claiming(), [202, 202, 202, 202]),
        (Passing.READ, Claiming(), [202, 202, 202, 202]),
    ],
)
async def test_reads_of_a_path_pass_without_a_key_or_always(
    passes: Passing, fallback: Other, expected: list[int]
) -> None:
    """Those below it and writes pass only where the fallback claims them."""
    table = PathRouter([HttpMount(("/theirs",), SINGLE, passes={"/theirs": passes})], fallback)
    key = Headers((("authorization", "Bearer sk-key"),))
    statuses = []
    for method, path, headers in [
        ("GET", "/theirs", Headers()),
        ("GET", "/theirs", key),
        ("GET", "/theirs/more", Headers()),
        ("POST", "/theirs", key),
    ]:
        _, ask = table.find(path)
        response = await ask(HttpRequest(method, path, "", headers))
        assert isinstance(response, HttpResponse)
        statuses.append(response.status)
    assert expected == statuses


OFFERED = {"/ping": Passing.FOUND}


@pytest.mark.parametrize(
    "ping",
    [
        HttpMount(("/ping",), SINGLE, passes=OFFERED),
        HttpMount((), SINGLE, exact=("/ping",), passes=OFFERED),
    ],
    ids=["prefix", "whole"],
)
async def test_an_offer_of_the_fallback_comes_first(ping: HttpMount) -> None:
    """The frontend serves what the server behind does not offer, and all that is in disguise."""
    theirs = HttpMount(("/theirs",), SINGLE, passes={"/theirs": Passing.FOUND})
    table = PathRouter([ping, theirs, HttpMount(("/v2",), SINGLE)], Claiming())
    statuses = []
    for path in ("/ping", "/theirs", "/theirs/x", "/theirs/../v2/x"):
        _, ask = table.find(path)
        response = await ask(HttpRequest("GET", path))
        assert isinstance(response, HttpResponse)
        statuses.append(response.status)
    assert [201, 203, 203, 201] == statuses
    with pytest.raises(HttpError, match="not in its normal form"):
        table.find("//ping")


async def test_a_frontend_offers_nothing_by_default() -> None:
    """Only a passthrough has paths of others."""
    assert await STREAMING.offer(HttpRequest("GET", "/ping")) is None
