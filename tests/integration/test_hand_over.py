"""Hand-over between gateways on the same ports: the next starts, the former stops, nothing is lost.

Clients of HTTP and gRPC repeat nothing. A brpc client repeats requests that were rejected with ELOGOFF
or got no response before the connection ended, as brpc's own client does.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Self

import grpc
import pytest

from gateway.migration.callers.inventory import merged_rows
from gateway.schema import open_inference_pb2 as pb
from tests.cases import brpc_oracle as oracle
from tests.cases.brpc_oracle import INT32, Client, Question, Tensor
from tests.integration.cli_kit import Running, gateway, get, serving
from tests.integration.workers_kit import PATIENCE_S, Load, ask, connect, events, eventually

# Calls of a long run, such as RESILIENCE_CALLS=300000; a machine answers at least 100 in a second.
CALLS = int(os.environ.get("RESILIENCE_CALLS", "0"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + CALLS // 100)]

CONFIG = """
version: 1
workers: {workers}
listeners:
  - http: "127.0.0.1:{http}"
    grpc: "127.0.0.1:{grpc}"
    streams:
      - {{protocol: grps, address: "127.0.0.1:{brpc}"}}
      - {{protocol: grps, address: "unix:{folder}/g.sock"}}
    transport: {transport}
admin: {{address: "127.0.0.1:{admin}", metrics: null}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
lifecycle: {{pre_stop: 300ms, drain: 5s, hand_over: {hand_over}}}
"""
ROWS = [
    Tensor("INPUT0", INT32, (1, 16), tuple(range(16))),
    Tensor("INPUT1", INT32, (1, 16), (1,) * 16),
]
PREDICT = Question("Predict", oracle.message("simple", ROWS))
SUM = Tensor("OUTPUT0", INT32, (1, 16), tuple(range(1, 17)))
ELOGOFF = 2003
ATTEMPTS = 4  # the first one included: max_retry of brpc is 3


def write_config(
    folder: Path, *, workers: int = 1, transport: str = "native", hand_over: bool = True
) -> Path:
    """Write a configuration with ports of its own, which are free."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        http, grpc, brpc, admin = (each.getsockname()[1] for each in sockets)
    path = folder / "gateway.yaml"
    path.write_text(
        CONFIG.format(
            workers=workers,
            http=http,
            grpc=grpc,
            brpc=brpc,
            admin=admin,
            folder=folder,
            transport=transport,
            hand_over=str(hand_over).lower(),
        )
    )
    return path


class StreamLoad:
    """A client of gRPC that opens one stream after another, on a thread, and repeats nothing.

    A stream has eight requests with pauses, so that many streams are open at each hand-over.
    """

    def __init__(self, running: Running) -> None:
        self._address = running.addresses["main.grpc"]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._numbers = itertools.count()
        self.answered = 0
        self.lost: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _ask(self) -> None:
        # Channels of one process would share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._address, options) as channel:
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            while not self._over.is_set():
                numbers = [next(self._numbers) for _ in range(8)]
                try:
                    found = [
                        read_sum(each) for each in stream(requests(numbers), timeout=PATIENCE_S)
                    ]
                except grpc.RpcError as error:
                    self.lost.append(f"stream: {error}")
                    continue
                self.answered += len(found)
                if found != numbers:
                    self.lost.append(f"stream: {found}, expected {numbers}")


def requests(numbers: list[int]) -> Iterator[bytes]:
    """Send a request for each number, with pauses; the sums in its reply are the number."""
    for number in numbers:
        inputs = [
            pb.ModelInferRequest.InferInputTensor(name=name, datatype="INT32", shape=[1, 16])
            for name in ("INPUT0", "INPUT1")
        ]
        rows = [struct.pack("<16i", *[each] * 16) for each in (number, 0)]
        request = pb.ModelInferRequest(
            model_name="simple", id=str(number), inputs=inputs, raw_input_contents=rows
        )
        yield request.SerializeToString()
        time.sleep(0.02)


def all_answer(loads: Sequence[Load | StreamLoad | BrpcLoad], before: Sequence[int]) -> bool:
    """Return whether each load has more replies than before."""
    return all(load.answered > count for load, count in zip(loads, before, strict=True))


def all_together(loads: Sequence[Load | StreamLoad | BrpcLoad], due: int) -> bool:
    """Return whether the loads have so many replies together, or one has lost a call."""
    return sum(load.answered for load in loads) >= due or any(load.lost for load in loads)


def read_sum(message: bytes) -> int:
    """Return the number of a reply in a stream; -1 if its id is another one."""
    response = pb.ModelStreamInferResponse.FromString(message).infer_response
    found: tuple[int, ...] = struct.unpack("<16i", response.raw_output_contents[0])
    return found[0] if [response.id] * 16 == [str(each) for each in found] else -1


class BrpcLoad:
    """A client of brpc that sends one request after another, on a thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._client: Client | None = None
        self.answered = 0
        self.lost: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _ask(self) -> None:
        while not self._over.is_set():
            why = ""
            for _ in range(ATTEMPTS):
                why = self._attempt()
                if not why:
                    self.answered += 1
                    break
            else:
                self.lost.append(why)
        if self._client is not None:
            self._client.socket.close()

    def _attempt(self) -> str:
        """Send once; return why to repeat the request, "" for a response."""
        try:
            if self._client is None:
                self._client = Client(self._address, PATIENCE_S)
            number = self._client.send(PREDICT)
            response = self._client.answer()
        except OSError as error:
            self._client = None
            return repr(error)
        if response is None or response.code == ELOGOFF:
            self._client.socket.close()
            self._client = None
            return "it was not answered"
        if (response.number, response.code) != (number, 0):
            self.lost.append(f"answer {response}")
        elif SUM not in (response.message.tensors or ()):
            self.lost.append(f"wrong answer {response}")
        return ""


def hand_over(path: Path, stack: ExitStack, former: Running) -> Running:
    """Start the next gateway and stop the former; return the next."""
    following = stack.enter_context(serving(str(path), patience_s=PATIENCE_S))
    assert 0 == former.stop()
    assert not [line for line in former.log if "Traceback" in line]
    return following


def run_hand_overs(path: Path, count: int, calls: int = 0) -> None:
    """Hand over several times under load, and check that nothing is lost.

    Args:
        path: The configuration.
        count: Hand-overs.
        calls: Calls that succeed meanwhile at least, as many after each hand-over.
    """
    with ExitStack() as stack:
        running = stack.enter_context(serving(str(path), patience_s=PATIENCE_S))
        loads: list[Load | StreamLoad | BrpcLoad] = [
            Load(running, 2),
            Load(running, 1, keep=False),
            Load(running, 2, grpc=True),
            Load(running, 1, grpc=True, keep=False),
            StreamLoad(running),
            StreamLoad(running),
            BrpcLoad(running.addresses["main.grps.brpc"]),
            BrpcLoad(running.addresses["main.grps.brpc"]),
        ]
        with ExitStack() as asking:
            for load in loads:
                asking.enter_context(load)
            for turn in range(1, count + 1):
                answered = [load.answered for load in loads]
                running = hand_over(path, stack, running)
                eventually(partial(all_answer, loads, answered))
                due = calls * turn // count
                eventually(partial(all_together, loads, due), math.inf)
                assert [[] for _ in loads] == [load.lost for load in loads]
        print(f"{sum(load.answered for load in loads)} calls during {count} hand-overs")
        assert [[] for _ in loads] == [load.lost for load in loads]
        assert 0 == running.stop()


def test_hand_over_loses_no_call(tmp_path: Path) -> None:
    """Two hand-overs of one process each, under load over HTTP, gRPC, streams and brpc."""
    run_hand_overs(write_config(tmp_path), 2)
    assert not list(tmp_path.glob("*.sock*"))


@pytest.mark.slow
@pytest.mark.flaky(reruns=0)  # a call that is lost once is lost
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_many_hand_overs_lose_no_call(tmp_path: Path, workers: int) -> None:
    """Seven hand-overs each with one, two and four workers."""
    run_hand_overs(write_config(tmp_path, workers=workers), 7, CALLS)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_next_gateway_continues_the_counts(tmp_path: Path, workers: int) -> None:
    """Both spend one budget while they run at the same time, and the stock has the calls of both."""
    path = write_config(tmp_path, workers=workers)
    more = "quotas: {q: {limit: 60/day, by: none}}\nstate: {directory: state}\nstock: {}\n"
    path.write_text(path.read_text() + more)

    def use(running: Running, count: int) -> list[int]:
        found = []
        for _ in range(count):
            with closing(connect(running)) as connection:
                found.append(ask(connection))
        return found

    with ExitStack() as stack:
        former = stack.enter_context(serving(str(path), patience_s=PATIENCE_S))
        found = use(former, 20)
        following = stack.enter_context(serving(str(path), patience_s=PATIENCE_S))
        found += use(former, 20)
        assert 0 == former.stop()
        found += use(following, 30)
        assert 0 == following.stop()
        found += use(stack.enter_context(serving(str(path), patience_s=PATIENCE_S)), 5)
    # Whichever of two gateways a connection reaches may wait for what the other one returns.
    assert 59 <= found.count(200) <= 60
    assert {200, 429} == set(found)
    (row, *others) = merged_rows(tmp_path / "state")
    assert found.count(200) + found.count(429) - 5 <= sum(each.calls for each in [row, *others])


def test_responses_during_pre_stop_close_the_connection(tmp_path: Path) -> None:
    """From the start of `pre_stop`, HTTP responses have `Connection: close`."""
    path = write_config(tmp_path)
    path.write_text(path.read_text().replace("pre_stop: 300ms", "pre_stop: 5s"))
    with serving(str(path)) as running:
        connection = connect(running)
        assert 200 == ask(connection)
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        eventually(lambda: events(running, "not ready"))
        connection.request("GET", "/v2/health/live")
        response = connection.getresponse()
        assert (200, "close") == (response.status, response.headers["Connection"])
        response.read()
        again = connect(running)
        again.request("GET", "/v2/health/live")
        response = again.getresponse()
        assert (200, "close") == (response.status, response.headers["Connection"])
        for each in (connection, again):
            each.close()
        stopping.join(PATIENCE_S)


def test_next_gateway_serves_the_admin_pages(tmp_path: Path) -> None:
    """The former gateway releases the admin port when it is stopped."""
    path = write_config(tmp_path)
    with ExitStack() as stack:
        former = stack.enter_context(serving(str(path)))
        following = hand_over(path, stack, former)
        assert (200, {"ready": True}) == get(following.url("/readyz", "admin"))
        assert (tmp_path / "g.sock").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_without_hand_over_the_ports_stay_in_use(tmp_path: Path, workers: int) -> None:
    """A second gateway with the same file fails to start, and the first keeps serving."""
    path = write_config(tmp_path, workers=workers, hand_over=False)
    with serving(str(path), patience_s=PATIENCE_S) as running:
        refused = gateway("serve", str(path))
        assert 1 == refused.returncode
        assert "already in use" in refused.stderr.lower()
        with closing(connect(running)) as connection:
            assert 200 == ask(connection)
