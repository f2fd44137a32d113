"""Headers that an operator configures, and the name of the client, over every protocol and carrier."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from urllib.parse import unquote

import pytest

from gateway.app.check.check import check
from gateway.config.load import ConfigError, load_text
from gateway.ir.calls import Call, InferRequest, ServerLiveRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.ir.errors import InvalidRequest, Unsupported
from gateway.ir.identity import GATEWAY, Identity
from gateway.policies.forward_headers import forwarding
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import HttpRequest
from tests.fakes import ScriptedService
from tests.properties.registered import REGISTERED, Registered

WRONG = ["a\nb", "a\r", "tab\there", "Größe", "\u200btoken", "\x7f", "\U0001f600", "", "  ", "a\0"]
NAMES = ["Größe", "a b", "x:y", "", "host", "content-type", "te", "grpc-x", "User-Agent", "accept"]
CLIENTS = [
    "é",
    "Jürgen",
    "a\tb",
    " a ",
    "50%",
    "corp:Ĳ\u2028",
    "\U0001f600",
    "%C3%A9",
    "plain name",
]


def problems(upstream: dict[str, Any], url: str = "oip+http://h:1") -> list[str]:
    """Return the paths of what is wrong with an upstream; each has a place in the file."""
    upstreams = {"up": {"url": url, **upstream}}
    text = f"version: 1\nlisteners: [{{http: 8000}}]\nupstreams: {json.dumps(upstreams)}\n"
    try:
        found = check(load_text(text))
    except ConfigError as error:
        found = error.problems
    assert all(one.position[0] == 3 and one.position[1] > 1 for one in found)
    secrets = [*upstream.get("headers", {}).values(), *_probe(upstream).values()]
    assert not any(len(each) > 1 and repr(each) in one.message for one in found for each in secrets)
    return [one.path for one in found]


def _probe(upstream: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = upstream.get("probe", {}).get("headers", {})
    return found


@pytest.mark.parametrize("value", WRONG)
def test_a_header_that_cannot_be_sent_was_left_out_of_each_request(value: str) -> None:
    """Its value is checked when the file is read."""
    assert ["upstreams.up.headers.x-key"] == problems({"headers": {"x-key": value}})
    assert ["upstreams.up.probe.headers.x-key"] == problems(
        {"probe": {"headers": {"x-key": value}}}
    )


@pytest.mark.parametrize("url", ["oip+http://h:1", "oip+grpc://h:1"])
@pytest.mark.parametrize("name", NAMES)
def test_a_header_that_is_never_sent_was_accepted(name: str, url: str) -> None:
    """Its name is checked for the carrier, and so is that of `client_header`."""
    assert [f"upstreams.up.headers.{name}"] == problems({"headers": {name: "x"}}, url)
    assert problems({"client_header": name}, url)


@pytest.mark.parametrize("url", ["graphpipe+tcp://h:1", "grps+brpc://h:1"])
def test_headers_of_frames_were_accepted(url: str) -> None:
    """Frames have no headers, so neither a credential nor a name arrives."""
    assert ["upstreams.up.headers.x-key"] == problems({"headers": {"x-key": "a"}}, url)
    assert ["upstreams.up.client_header"] == problems({"client_header": "x-client"}, url)


def test_a_byte_order_mark_is_no_part_of_a_header(tmp_path: Any) -> None:
    """Nor is the end of the last line of a file."""
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbftoken\r\n")
    text = (
        "version: 1\nlisteners: [{http: 8000}]\nupstreams: {up: {url: 'http://h:1', headers: "
        '{a: "Bearer ${file:key}", b: "\\uFEFFx ", c: "${file:key}"}}}'
    )
    headers = load_text(text, directory=tmp_path).config.upstreams["up"].headers
    assert {"a": "Bearer token", "b": "x", "c": "token"} == headers


def test_bytes_of_metadata_are_base64() -> None:
    """Other text under a name with `-bin` would be left out over gRPC."""
    right = {"x-bin": b64encode(b"\0a").decode()}
    assert [] == problems({"headers": right}, "oip+grpc://h:1")
    for wrong in ({"headers": {"x-bin": "not base64!"}}, {"client_header": "x-bin"}):
        assert 1 == len(problems(wrong, "oip+grpc://h:1"))
    assert [] == problems({"headers": {"x-bin": "any text"}})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "codec",
    [each for each in REGISTERED.values() if each.carrier != "stream"],
    ids=lambda codec: codec.name,
)
async def test_a_client_with_an_odd_name_had_none_at_the_server(
    codec: Registered, client: str
) -> None:
    """The name and a configured header arrive over each protocol; what decodes it is the name."""
    service = ScriptedService(always=True)
    policy = forwarding(service, (), {"X-Key": "secret"}, "x-client")
    context = Context(client=Client(identity=Identity(client)))
    await policy(ServerLiveRequest(context=context))
    call: Call[Any] = service.calls[0]
    try:
        wire = codec.make({}).encode_call(call)
    except Unsupported:
        pytest.skip("the protocol has no such question")
    if wire is None:
        pytest.skip("the protocol asks nothing")
    assert isinstance(wire, HttpRequest | GrpcRequest)
    found = dict(wire.headers.lowered if isinstance(wire, HttpRequest) else wire.metadata)
    value = found["x-client"]
    assert isinstance(value, str)
    assert ("secret", client) == (found["x-key"], unquote(value))
    assert value.isascii()
    assert value.isprintable()
    assert value == value.strip()


@pytest.mark.parametrize(
    "codec",
    [each for each in REGISTERED.values() if each.carrier != "stream"],
    ids=lambda codec: codec.name,
)
async def test_odd_values_of_strangers_were_left_out(codec: Registered) -> None:
    """A listed header with text that is not ASCII arrives over each protocol, percent-encoded."""
    service = ScriptedService(always=True)
    policy = forwarding(service, ("x-*",), {}, None)
    sent = (("x-user", "Jürgen"), ("x-tab", "a\tb"), ("x-plain", "50% é"), ("x-ascii", "50%"))
    await policy(ServerLiveRequest(context=Context(metadata=sent)))
    try:
        wire = codec.make({}).encode_call(service.calls[0])
    except Unsupported:
        pytest.skip("the protocol has no such question")
    if wire is None:
        pytest.skip("the protocol asks nothing")
    assert isinstance(wire, HttpRequest | GrpcRequest)
    found = dict(wire.headers.lowered if isinstance(wire, HttpRequest) else wire.metadata)
    expected = {
        "x-user": "J%C3%BCrgen",
        "x-tab": "a%09b",
        "x-plain": "50%25 %C3%A9",
        "x-ascii": "50%",
    }
    assert expected == {name: value for name, value in found.items() if name in expected}


async def test_different_names_have_different_headers() -> None:
    """A name that looks like an encoded one is not it, and the gateway itself has none."""
    service = ScriptedService(always=True)
    policy = forwarding(service, ("x-client",), {}, "x-client")
    for identity in (*map(Identity, CLIENTS), GATEWAY):
        client = Client(identity=identity)
        await policy(InferRequest(context=Context(metadata=(("x-client", "root"),), client=client)))
    found = [call.context.metadata for call in service.calls]
    assert len(CLIENTS) == len({pairs[0][1] for pairs in found[:-1]})
    assert () == found[-1]


@pytest.mark.parametrize("client_header", [None, "x-client"])
async def test_two_credentials_were_both_forwarded(client_header: str | None) -> None:
    """A server may read another one of them than what checked them did."""
    service = ScriptedService(always=True)
    one, two = ("authorization", "Bearer a"), ("authorization", "Bearer b")
    for allowed, added, is_refused in (
        (("authorization",), {}, True),
        (("Authorization", "*"), {}, True),
        (("*",), {}, False),
        (("authorization",), {"authorization": "own"}, False),
    ):
        policy = forwarding(service, allowed, added, client_header)
        await policy(InferRequest(model=ModelRef("m"), context=Context(metadata=(one,))))
        call = InferRequest(model=ModelRef("m"), context=Context(metadata=(one, two)))
        if is_refused:
            with pytest.raises(InvalidRequest, match="several 'authorization' fields"):
                await policy(call)
        else:
            await policy(call)
            kept = [pair for pair in service.calls[-1].context.metadata if pair[0] == one[0]]
            assert [("authorization", "own")] * bool(added) == kept
