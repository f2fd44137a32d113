"""Streaming frontends with streaming targets: order, failure, cancellation, slow readers.

Two gateways run in processes of their own, with real sockets.  Streams of a single protocol
are tested with the other tests of that protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_kit import Running, serving
from tests.integration.streaming_models import FLOOD_BYTES
from tests.integration.workers_kit import eventually, read_when_stable
from tests.matrix.streams import (
    CLIENTS,
    TIMEOUT_S,
    Client,
    Heard,
    OipGrpc,
    TrtisGrpc,
    channel_to,
    first_answers,
    stream_of,
)

MODELS = {
    "endless": "tests.integration.streaming_models",
    "silent": "tests.integration.streaming_models",
    "flood": "tests.integration.streaming_models",
    "breaks": "tests.integration.streaming_models",
    "mute": "tests.integration.streaming_models",
    "speak": "gateway.backends.examples",
    "SequenceSum": "gateway.backends.examples",
}
INSTANCES = {"speak": 4, "endless": 32}
BEHIND = (
    """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0", transport: TRANSPORT}]
admin: {address: null, metrics: null}
models:
"""
    + "".join(
        f"  {name}: {{backend: python, options: "
        f'{{callable: "{module}:{name}", instances: {INSTANCES.get(name, 1)}}}}}\n'
        for name, module in MODELS.items()
    )
    + "lifecycle: {pre_stop: 0s}\n"
)
# Upstreams with streams, and upstreams with single replies only.
STREAMING = {
    "oip-grpc": "oip+grpc://{grpc}",
    "oip-http": "oip+http://{http}",
    "grps-grpc": "grps+grpc://{grpc}",
    "grps-http": "grps+http://{http}",
}
SINGLE = {
    "trtis-grpc": "trtis+grpc://{grpc}",
    "trtis-http": "trtis+http://{http}",
    "graphpipe-http": "graphpipe+http://{http}/graphpipe/speak",
}
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0", transport: {transport}}}]
admin: {{address: null, metrics: null}}
upstreams:
{upstreams}
routes:
{routes}
lifecycle: {{pre_stop: 0s}}
"""
LOCAL = "in-process"


@pytest.fixture(
    scope="module", params=["reference", pytest.param("native", marks=pytest.mark.slow)]
)
def transport(request: pytest.FixtureRequest) -> str:
    """The gRPC implementation of both gateways; the quick run has only one."""
    make: str = request.param
    return make


@pytest.fixture(scope="module")
def behind(transport: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with models of its own."""
    config = tmp_path_factory.mktemp("behind") / "gateway.yaml"
    config.write_text(BEHIND.replace("TRANSPORT", transport))
    with serving(str(config)) as running:
        yield running


@pytest.fixture(scope="module")
def front(
    transport: str, behind: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A gateway that calls the one behind in every protocol."""
    config = tmp_path_factory.mktemp("front") / "gateway.yaml"
    config.write_text(_front(behind, transport))
    with serving(str(config)) as running:
        yield running


def _front(behind: Running, transport: str) -> str:
    addresses = {"http": behind.addresses["main.http"], "grpc": behind.addresses["main.grpc"]}
    urls = {way: url.format(**addresses) for way, url in {**STREAMING, **SINGLE}.items()}
    upstreams = (
        f"  {way}: {{url: '{url}'{_carried(url, transport)}}}\n" for way, url in urls.items()
    )
    routes = (
        f"  - {{match: {{model: {way}.{name}}}, sequence_ids: text, "
        f"targets: [{{upstream: {way}, model: {name}}}]}}\n"
        for way in urls
        for name in MODELS
    )
    return FRONT.format(transport=transport, upstreams="".join(upstreams), routes="".join(routes))


def _carried(url: str, transport: str) -> str:
    return f", transport: {transport}" if "+grpc" in url else ""


@pytest.fixture(params=[LOCAL, *STREAMING])
def target(request: pytest.FixtureRequest, transport: str) -> tuple[Running, str]:
    """A gateway with the models or with routes to them, and the prefix of their names."""
    assert transport  # what the two below are made with
    if request.param == LOCAL:
        return request.getfixturevalue("behind"), ""
    return request.getfixturevalue("front"), f"{request.param}."


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """A client of one protocol."""
    found: Client = request.param
    return found


def until_stopped(path: Path) -> None:
    """Wait until a model was stopped, long before the time of the client is over."""
    eventually(path.exists, TIMEOUT_S / 2)


def resident(running: Running) -> int:
    """Return the resident memory of a gateway, in bytes."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def test_responses_arrive_in_order(target: tuple[Running, str], client: Client) -> None:
    """The client gets every word in order."""
    running, prefix = target
    with client.ask(running, f"{prefix}speak", "a b c d e f g h i j") as stream:
        words = ["a", *(f" {letter}" for letter in "bcdefghij")]
        assert [Heard(word) for word in words] == list(stream)


def test_a_failure_in_the_middle_of_a_stream_is_reported(
    target: tuple[Running, str], client: Client
) -> None:
    """The client gets the earlier words, then the error; the stream ends normally."""
    running, prefix = target
    with client.ask(running, f"{prefix}breaks", "x") as stream:
        *items, failed = stream
    assert [Heard("one "), Heard("two")] == items
    assert "ValueError: this model breaks on purpose" in failed.error


def test_a_stream_may_be_empty(target: tuple[Running, str], client: Client) -> None:
    """A model without any reply yields an empty stream."""
    running, prefix = target
    with client.ask(running, f"{prefix}mute", "x") as stream:
        assert [] == list(stream)


@pytest.mark.parametrize("model", ["endless", "silent"])
def test_a_client_that_disconnects_stops_the_model(
    target: tuple[Running, str], client: Client, model: str, tmp_path: Path
) -> None:
    """The model runs when the first word arrives, and stops, busy or idle, behind any upstream."""
    running, prefix = target
    path = tmp_path / "stopped"
    with client.ask(running, f"{prefix}{model}", str(path)) as stream:
        assert 1 == len(first_answers(stream, 1))
        assert not path.exists()
        stream.leave()
        until_stopped(path)


def test_a_slow_reader_slows_the_model(
    target: tuple[Running, str], client: Client, tmp_path: Path
) -> None:
    """The model produces few replies ahead of the reader, and memory stays bounded."""
    running, prefix = target
    path = tmp_path / "made"
    with client.ask(running, f"{prefix}flood", str(path)) as stream:
        if client.name.endswith("grpc"):
            first_answers(stream, 1)
        before = resident(running)
        made = read_when_stable(path)
        # JSON of a MiB of FP32 is a few times as long.
        assert resident(running) - before < 48 * FLOOD_BYTES
        stream.leave()
    assert made < 32


@pytest.mark.parametrize("way", SINGLE)
def test_a_target_without_streams_returns_one_reply(
    front: Running, client: Client, way: str
) -> None:
    """A stream from a target without streaming has exactly one reply."""
    with client.ask(front, f"{way}.speak", "hello out there") as stream:
        assert [Heard("hello out there")] == list(stream)


def test_stream_infer_returns_the_one_reply_of_a_model(target: tuple[Running, str]) -> None:
    """A streaming model that has a single reply serves a request of TensorRT v1."""
    running, prefix = target
    with TrtisGrpc().ask(running, f"{prefix}speak", "hello out there") as stream:
        assert [Heard("hello out there")] == list(stream)


def test_stream_infer_rejects_several_replies_of_a_model(target: tuple[Running, str]) -> None:
    """The error is a response with the request's id, and its text names the streaming call."""
    running, prefix = target
    with TrtisGrpc().ask(running, f"{prefix}breaks", "x") as stream:
        (failed,) = stream
    assert "more than one response; use a streaming call" in failed.error


def test_a_client_that_cancels_stream_infer_stops_the_model(
    target: tuple[Running, str], tmp_path: Path
) -> None:
    """The model stops, also before its first reply."""
    running, prefix = target
    path = tmp_path / "stopped"
    with TrtisGrpc().ask(running, f"{prefix}silent", str(path)) as stream:
        eventually(path.with_suffix(".begun").exists)
        stream.leave()
        until_stopped(path)


@pytest.fixture
def doomed(transport: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway for one test, and one in front that calls it in every protocol."""
    folder = tmp_path_factory.mktemp("doomed")
    back, ahead = folder / "back.yaml", folder / "ahead.yaml"
    back.write_text(BEHIND.replace("TRANSPORT", transport))
    with serving(str(back)) as server:
        ahead.write_text(_front(server, transport))
        with serving(str(ahead)) as gateway:
            yield server, gateway


def test_a_killed_server_ends_its_streams_with_an_error(doomed: Any) -> None:
    """Every client gets an error at the end of its stream, long before its time is over."""
    server, gateway = doomed
    with ExitStack() as stack:
        streams = {
            (client.name, way): stack.enter_context(
                client.ask(gateway, f"{way}.endless", "/dev/null")
            )
            for client in CLIENTS
            for way in STREAMING
        }
        for stream in streams.values():
            assert 1 == len(first_answers(stream, 1))
        server.process.kill()
        server.process.wait()
        killed = time.monotonic()
        for name, stream in streams.items():
            *items, last = stream
            assert [""] * len(items) == [each.error for each in items], name
            assert last.error, name
        assert time.monotonic() - killed < TIMEOUT_S / 2


class _Session:
    """ModelStreamInfer, held open."""

    def __init__(self, running: Running, messages: list[Any]) -> None:
        self._running = running
        self._messages = messages

    def responses(self) -> list[Any]:
        with channel_to(self._running) as channel:
            return list(stream_of(channel)(iter(self._messages), timeout=60))


def test_requests_on_one_stream_run_concurrently(target: tuple[Running, str]) -> None:
    """Two requests interleave their replies, and the failure of a third affects neither."""
    running, prefix = target
    question = OipGrpc.question
    found = _Session(
        running,
        [
            question(f"{prefix}speak", "a b c d e", "1"),
            question(f"{prefix}breaks", "x", "2"),
            question(f"{prefix}speak", "v w x y z", "3"),
        ],
    ).responses()
    items: dict[str, list[Heard]] = {"1": [], "2": [], "3": []}
    for message in found:
        items[message.infer_response.id].append(OipGrpc.read_answer(message))
    assert ["a", " b", " c", " d", " e"] == [each.word for each in items["1"]]
    assert ["v", " w", " x", " y", " z"] == [each.word for each in items["3"]]
    assert ["one ", "two", ""] == [each.word for each in items["2"]]
    assert "on purpose" in items["2"][-1].error
    ids = [message.infer_response.id for message in found]
    assert ids.index("3") < len(ids) - 1 - ids[::-1].index("1")


@pytest.mark.parametrize("sequence_id", [812, "seq-a"])
@pytest.mark.parametrize("way", [LOCAL, "oip-grpc", "oip-http", "trtis-grpc"])
def test_requests_of_a_sequence_keep_their_order_on_a_stream(
    behind: Running, front: Running, way: str, sequence_id: int | str
) -> None:
    """Requests that are sent at once reach the model in the order of the stream."""
    if way == "trtis-grpc" and isinstance(sequence_id, str):
        pytest.skip("TensorRT v1 expects a number for sequences")
    running, prefix = (behind, "") if way == LOCAL else (front, f"{way}.")
    messages = [
        _in_sequence(f"{prefix}SequenceSum", sequence_id, value, last=40) for value in range(1, 41)
    ]
    found = _Session(running, messages).responses()
    assert [""] * 40 == [message.error_message for message in found]
    sums = [
        int.from_bytes(message.infer_response.raw_output_contents[0], "little") for message in found
    ]
    assert [value * (value + 1) // 2 for value in range(1, 41)] == sums


def _in_sequence(model: str, sequence_id: int | str, value: int, *, last: int) -> Any:
    message = OipGrpc.question(model, "", str(value))
    parameters = message.parameters
    if isinstance(sequence_id, str):
        parameters["sequence_id"].string_param = sequence_id
    else:
        parameters["sequence_id"].int64_param = sequence_id
    parameters["sequence_start"].bool_param = value == 1
    parameters["sequence_end"].bool_param = value == last
    del message.inputs[:], message.raw_input_contents[:]
    message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
    message.raw_input_contents.append(value.to_bytes(4, "little"))
    return message
