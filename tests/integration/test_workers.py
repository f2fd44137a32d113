"""Worker processes as operators use them: killed, replaced and stopped."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.integration import workers_kit as kit
from tests.integration.cli_kit import Running, gateway, get, serving
from tests.integration.workers_kit import BODY, CONFIG, Load, two_workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True, scope="module")
def forked_processes() -> None:
    """Workers of these tests start from nothing, as those of a user do."""


FATAL = """  fatal:
    backend: python
    options: {callable: "tests.integration.workers_models:Fatal", arguments: {flag: "FLAG"}}"""
SLOW = """  slow:
    backend: python
    options: {callable: "tests.integration.workers_models:Slow", arguments: {flag: "FLAG"}}"""


def slow(folder: Path) -> str:
    """Return a model that waits for the file `go` in *folder*."""
    return SLOW.replace("FLAG", str(folder / "go"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the configuration and the unix socket of `lasting`."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def lasting(folder: Path) -> Iterator[Running]:
    """A gateway of two workers for tests that keep both; a flag sets their number."""
    with two_workers(folder, "--workers", "2", more=slow(folder)) as running:
        yield running


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Running]:
    """A gateway of two workers."""
    with two_workers(tmp_path, more=slow(tmp_path)) as running:
        yield running


def test_workers_share_port_metrics_and_probes(lasting: Running) -> None:
    """Either worker serves the port; metrics add up both, and probes cover the whole."""
    for worker in (1, 2):
        connection = kit.connected_to(lasting, worker)
        assert 200 == kit.ask(connection)
        connection.close()
    by_worker = kit.of_workers(lasting, "worker_requests_total")
    assert all(by_worker.values())
    assert sum(by_worker.values()) == kit.calls(lasting)
    assert {1: 1.0, 2: 1.0} == kit.of_workers(lasting, "worker_up")
    assert [(200, {"live": True}), (200, {"ready": True})] == [
        get(lasting.url(path, "admin")) for path in ("/livez", "/readyz")
    ]
    assert [2] == [line["workers"] for line in kit.events(lasting, "started")]
    assert 2 == len(kit.pids(lasting))
    kit.eventually(lambda: {1, 2} == {line["worker"] for line in kit.events(lasting, "call")})


def test_killed_worker_loses_only_its_own_calls(lasting: Running, folder: Path) -> None:
    """A call of the other succeeds, a new worker starts, and counters keep their values."""
    survivor, lost = kit.connected_to(lasting, 2), kit.connected_to(lasting, 1)
    before = kit.calls(lasting)
    for connection in (lost, survivor):
        kit.ask_slowly(lasting, connection)
    kit.end(kit.pids(lasting)[1], signal.SIGKILL)
    with pytest.raises((OSError, HTTPException)):
        lost.getresponse()
    (folder / "go").touch()
    response = survivor.getresponse()
    assert (200, True) == (response.status, bool(response.read()))
    fresh = kit.connect(lasting)
    assert 200 == kit.ask(fresh)
    kit.eventually(lambda: kit.of_workers(lasting, "worker_up") == {1: 1.0, 2: 1.0})
    assert before + 2 == kit.calls(lasting)
    assert {1: 1.0, 2: 0.0} == kit.of_workers(lasting, "worker_restarts_total")
    again = kit.connected_to(lasting, 1)
    for connection in (survivor, lost, fresh, again):
        connection.close()
    died = kit.events(lasting, "worker died")
    assert [(1, "was killed by SIGKILL")] == [(line["worker"], line["ended"]) for line in died]


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """It is down and the gateway not ready; a reload goes on, and a new worker serves."""
    path = tmp_path / "workers.yaml"
    text = CONFIG.format(folder=tmp_path, port=0, transport="native", more="")
    path.write_text(text.replace("drain: 5s", "drain: 5s, worker_timeout: 9s"))
    with serving(str(path), patience_s=kit.PATIENCE_S) as running:
        hung = kit.pids(running)[2]
        kit.end(hung, signal.SIGSTOP)
        kit.eventually(lambda: kit.of_workers(running, "worker_up") == {1: 1.0, 2: 0.0})
        assert (503, {"ready": False}) == get(running.url("/readyz", "admin"))
        assert [(2, hung)] == [
            (line["worker"], line["pid"]) for line in kit.events(running, "process does not reply")
        ]
        status, body = get(running.url("/reload", "admin"), {})
        assert (200, "applied") == (status, body["outcome"])
        kit.eventually(lambda: kit.of_workers(running, "worker_up") == {1: 1.0, 2: 1.0})
        assert (200, {"ready": True}) == get(running.url("/readyz", "admin"))
        assert {1: 0.0, 2: 1.0} == kit.of_workers(running, "worker_restarts_total")
        assert not kit.is_alive(hung)
        assert 0 == running.stop()


def test_stop_loses_no_call(two: Running, tmp_path: Path) -> None:
    """On SIGTERM both finish their calls; the status is 0, and the socket file is removed."""
    assert (tmp_path / "g.sock").exists()
    connections = [kit.connected_to(two, worker) for worker in (1, 2)]
    for connection in connections:
        kit.ask_slowly(two, connection)
    stopping = threading.Thread(target=two.stop)
    stopping.start()
    kit.eventually(lambda: bool(kit.events(two, "not ready")))
    (tmp_path / "go").touch()
    responses = [connection.getresponse() for connection in connections]
    assert [200, 200] == [response.status for response in responses]
    for response, connection in zip(responses, connections, strict=True):
        response.read()
        connection.close()
    stopping.join(kit.PATIENCE_S)
    assert 0 == two.process.wait(kit.PATIENCE_S)
    assert [1, 1] == [len(kit.events(two, event)) for event in ("not ready", "stopped")]
    assert "Traceback" not in "".join(two.log)
    assert not (tmp_path / "g.sock").exists()


def test_second_signal_ends_all_workers_at_once(two: Running) -> None:
    """A second signal does not wait for calls in flight."""
    connection = kit.connected_to(two, 1)
    kit.ask_slowly(two, connection)
    workers = kit.pids(two).values()
    two.process.send_signal(signal.SIGINT)
    kit.eventually(lambda: bool(kit.events(two, "not ready")))
    assert -signal.SIGTERM == two.stop()
    kit.eventually(lambda: not any(map(kit.is_alive, workers)))
    connection.close()


def test_workers_end_with_their_supervisor(two: Running) -> None:
    """A killed supervisor leaves no worker, and its port is free."""
    workers = kit.pids(two).values()
    two.process.kill()
    kit.eventually(lambda: not any(map(kit.is_alive, workers)))
    host, _, port = two.addresses["main.http"].rpartition(":")
    socket.create_server((host, int(port))).close()


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False], ids=["kept-connections", "new-connections"])
@pytest.mark.parametrize(
    ("transport", "grpc"),
    # grpcio cancels calls of its last moment, and what waits at its door: that is its own.
    [("native", False), ("reference", False), ("native", True)],
    ids=["http-native", "http-reference", "grpc-native"],
)
def test_workers_are_replaced_one_by_one(
    tmp_path: Path, transport: str, grpc: bool, keep: bool
) -> None:
    """Each worker is stopped under load: no request is lost, and a new one starts."""
    with (
        two_workers(tmp_path, transport=transport) as running,
        Load(running, 4, keep=keep, grpc=grpc) as load,
    ):
        for worker in (1, 2):
            births = len(kit.events(running, "worker started"))
            kit.end(kit.pids(running)[worker], signal.SIGTERM)
            kit.eventually(lambda: len(kit.events(running, "worker started")) > births)  # noqa: B023
    assert [] == load.lost
    assert load.answered > 0
    assert [1, 2] == [line["worker"] for line in kit.events(running, "worker exited")]


def test_port_in_use_is_one_error_line(lasting: Running, tmp_path: Path) -> None:
    """A second gateway fails with status 1, with one worker or two."""
    port = lasting.addresses["main.http"].rpartition(":")[2]
    path = tmp_path / "second.yaml"
    for workers in ("workers: 1", "workers: 2"):
        text = CONFIG.format(folder=tmp_path, port=port, transport="native", more="")
        path.write_text(text.replace("workers: 2", workers))
        done = gateway("serve", str(path))
        errors = [line for line in done.stderr.splitlines() if line.startswith("gateway:")]
        assert (1, 1) == (done.returncode, len(errors)), done.stderr
        assert port in errors[0]
        assert "in use" in errors[0]


def test_start_errors_are_reported_once(tmp_path: Path) -> None:
    """A failing model and an option that workers exclude are reported once each."""
    path = tmp_path / "wrong.yaml"
    missing = CONFIG.format(folder=tmp_path, port=0, transport="native", more="").replace(
        ":simple", ":nothing"
    )
    path.write_text(missing)
    done = gateway("serve", str(path))
    assert 1 == done.returncode
    assert 1 == done.stderr.count("cannot start"), done.stderr
    assert "nothing" in done.stderr
    path.write_text(missing.replace("transport: native", "shared_memory: map"))
    done = gateway("serve", str(path))
    assert 2 == done.returncode
    assert 1 == done.stderr.count("with 'workers: 2' this would register a region"), done.stderr


class OverUnix(HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=kit.PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(kit.PATIENCE_S)
        self.sock.connect(str(self._path))


def test_workers_share_a_unix_socket(lasting: Running, folder: Path) -> None:
    """Workers accept connections of one socket file, which remains when one exits."""
    socket_file = folder / "g.sock"
    before = kit.of_workers(lasting, "worker_requests_total")

    def both_have_replied() -> bool:
        after = kit.of_workers(lasting, "worker_requests_total")
        return all(after[worker] > before[worker] for worker in before)

    # Either takes what it is woken for first.
    kit.eventually(lambda: _is_live(socket_file) and both_have_replied())
    births = len(kit.events(lasting, "worker started"))
    kit.end(kit.pids(lasting)[1], signal.SIGTERM)
    kit.eventually(lambda: len(kit.events(lasting, "worker exited")) == 1)
    assert _is_live(socket_file)
    kit.eventually(lambda: len(kit.events(lasting, "worker started")) > births)


def _is_live(path: Path) -> bool:
    """Call a server over a unix socket for its liveness, and return the reply."""
    with closing(OverUnix(path)) as connection:
        connection.request("GET", "/GrpsBrpcService/CheckLiveness")
        with closing(connection.getresponse()) as response:
            return response.status == 200


def test_workers_flag_requires_a_number() -> None:
    """An invalid number of workers is wrong usage."""
    done = gateway("serve", "--demo", "--workers", "none")
    assert 2 == done.returncode
    assert "'none' is not a number of workers" in done.stderr


def test_sequence_of_an_in_process_model_is_rejected(lasting: Running) -> None:
    """The next request might reach the other worker, so sequences get 501."""
    body = json.loads(BODY) | {"parameters": {"sequence_id": 7, "sequence_start": True}}
    status, response = get(lasting.url("/v2/models/simple/infer"), body)
    assert 501 == status
    assert "runs in each of 2 workers" in response["error"]


@pytest.mark.slow
def test_crash_loop_ends_the_gateway(tmp_path: Path) -> None:
    """After repeated crashes of a worker the gateway exits with status 1."""
    flag = tmp_path / "flag"
    with two_workers(tmp_path, more=FATAL.replace("FLAG", str(flag))) as running:
        flag.touch()
        kit.end(kit.pids(running)[1], signal.SIGKILL)
        assert 1 == running.process.wait(90)
    given_up = kit.events(running, "worker not restarted")
    assert [1] == [line["worker"] for line in given_up]


SEQUENCES = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
{more}
lifecycle: {{pre_stop: 0s}}
"""
TOTAL = """models:
  total: {backend: python, options: {callable: "gateway.backends.examples:SequenceSum"}}
"""


@pytest.mark.slow
def test_workers_agree_on_the_server_of_a_sequence(tmp_path: Path) -> None:
    """Requests of a sequence over separate connections reach the same server."""
    server, front = tmp_path / "server.yaml", tmp_path / "front.yaml"
    server.write_text(SEQUENCES.format(workers=1, more=TOTAL))
    with serving(str(server)) as one, serving(str(server)) as other:
        urls = [f"oip+grpc://{each.addresses['main.grpc']}" for each in (one, other)]
        front.write_text(
            SEQUENCES.format(workers=2, more=f"upstreams: {{both: {{urls: {json.dumps(urls)}}}}}")
        )
        with serving(str(front), patience_s=kit.PATIENCE_S) as running:
            for sequence in range(1, 5):
                sums = [_summed(running, sequence, number) for number in range(1, 9)]
                assert [1, 3, 6, 10, 15, 21, 28, 36] == sums
            assert all(kit.of_workers(running, "worker_requests_total").values())


def _summed(running: Running, sequence: int, number: int) -> int:
    """Send one number of a sequence and return the sum so far."""
    parameters = {"sequence_id": sequence, "sequence_start": number == 1, "sequence_end": False}
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [number]}
    body = {"inputs": [tensor], "parameters": parameters}
    status, response = get(running.url("/v2/models/total/infer"), body)
    assert 200 == status, response
    found: int = response["outputs"][0]["data"][0]
    return found
