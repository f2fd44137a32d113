"""A cut-over in each state while its processes are stopped and killed and calls are open."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from gateway.app import connect
from gateway.ir.calls import StreamInferRequest
from gateway.ir.tensors.tensor import as_numpy
from gateway.policies.complete.policy import Complete
from gateway.settings.units import parse_url
from tests.integration import workers_kit
from tests.integration.http_kit import eventually
from tests.integration.migration import mirror_kit
from tests.integration.migration.cutover_kit import (
    GUARDED,
    MigratingGateway,
    migrating,
    two_servers,
)
from tests.integration.reload_kit import (
    HEAD,
    PATIENCE_S,
    STEP,
    infer_request,
    reloadable_beside,
    servers,
)

pytestmark = pytest.mark.timeout(300)

# A guard that does not hold for long, and one that nothing waits for.
_WAITS = GUARDED.replace("1%", "0.001%")
STATES = {
    "ready": ("", (), {"old"}),
    "mirroring": (_WAITS, ("start",), {"old"}),
    "baking": (_WAITS, ("start", "pause", "resume 2"), {"new"}),
    "waiting_for_approval": ("approve: [100]", ("start", "pause", "resume 1"), {"old", "new"}),
    "paused": ("", ("start", "pause", "resume 2", "pause"), {"new"}),
    "rolled_back": ("", ("start", "rollback"), {"old"}),
    "done": ("", ("start", "pause", "resume 2"), {"new"}),
}
"""Options of the cut-over, the commands to a state, and the servers that reply then."""


async def reach(gateway: MigratingGateway, state: str) -> tuple[dict[str, Any], list[str]]:
    """Bring a cut-over to a state; return its document, and the server of each user."""
    _, commands, expected = STATES[state]
    for line in commands:
        verb, _, step = line.partition(" ")
        await gateway.do(verb, **({"at_step": int(step)} if step else {}))
    async with asyncio.timeout(60):
        while (document := await gateway.cutover())["state"] != state:
            await gateway.ask(4)
    responses = await gateway.ask(20)
    assert expected == set(responses)
    return document, responses


def place(document: dict[str, Any]) -> tuple[Any, ...]:
    """Return the part of a document that neither a signal nor a restart changes."""
    return tuple(document[key] for key in ("step", "weight", "attempt", "tripped"))


@asynccontextmanager
async def stopped(pid: int) -> AsyncIterator[None]:
    """Stop a process, and let it go on at the end."""
    workers_kit.end(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        workers_kit.end(pid, signal.SIGCONT)


def shadow_pids(gateway: MigratingGateway) -> list[int]:
    return [line["pid"] for line in gateway.gateway.events("shadow process started")]


async def is_balanced(gateway: MigratingGateway) -> None:
    """Wait until every sampled call is compared, skipped or dropped."""

    async def so_far() -> tuple[dict[str, float], dict[str, Any]] | None:
        _, page = await asyncio.to_thread(gateway.gateway.admin, "GET", "/metrics")
        found = mirror_kit.values(page)
        document = (await gateway.get())[1]["evidence"]
        if document is None:  # before the first report of a new shadow process
            return None
        is_over = mirror_kit.is_balanced(found) and document["in_flight"] == 0
        return (found, document) if is_over else None

    at_rest = await eventually(so_far)
    assert at_rest is not None
    found, document = at_rest
    assert mirror_kit.balances(document)
    assert mirror_kit.total(found, "gateway_migration_sampled_total") > 0


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
async def test_stopped_and_killed_processes_move_no_call(tmp_path: Path, state: str) -> None:
    """Shadow process, worker and leader are stopped, then killed; every user keeps its server."""
    options = STATES[state][0]
    async with two_servers() as addresses:
        async with migrating(tmp_path, addresses, 2, options) as gateway:
            before, responses = await reach(gateway, state)
            running = gateway.gateway.running
            victims = {
                "shadow": shadow_pids(gateway)[-1],
                "leader": running.process.pid,
                "worker": workers_kit.pids(running)[1],
            }
            for victim, pid in victims.items():
                async with stopped(pid):
                    asking = asyncio.create_task(gateway.ask(20))
                    # A stopped worker keeps the connections that the kernel gave it.
                    if victim == "worker":
                        assert place(before) == place(await gateway.cutover())
                    else:
                        assert responses == await asking, victim
                assert responses == await asking, victim
                after = await gateway.cutover()
                assert (state, place(before)) == (after["state"], place(after)), victim

            workers_kit.end(victims["shadow"], signal.SIGKILL)
            assert responses == await gateway.ask(20)
            await asyncio.to_thread(workers_kit.eventually, lambda: len(shadow_pids(gateway)) > 1)
            workers_kit.end(victims["worker"], signal.SIGKILL)
            await asyncio.to_thread(
                workers_kit.eventually, lambda: workers_kit.pids(running)[1] != victims["worker"]
            )
            assert responses == await gateway.ask(20)
            after = await gateway.cutover()
            assert (state, place(before)) == (after["state"], place(after))
            assert before["epoch"] == after["epoch"]
            await is_balanced(gateway)
            running.process.send_signal(signal.SIGKILL)
        async with migrating(tmp_path, addresses, 2, options) as gateway:
            assert responses == await gateway.ask(20)
            after = await gateway.cutover()
            assert place(before) == place(after)
            assert before["epoch"] <= after["epoch"]
            assert after["state"] in {state, "baking"}  # the bake time begins anew
            await is_balanced(gateway)


@pytest.mark.slow
async def test_rollback_survives_stopped_and_killed_processes(tmp_path: Path) -> None:
    """It stays in progress while a worker is stopped and the leader is stopped and killed."""
    async with two_servers() as addresses:
        async with migrating(tmp_path, addresses, 2) as gateway:
            await gateway.at_step(2)
            assert {"new"} == set(await gateway.ask(20))
            running = gateway.gateway.running
            pid = workers_kit.pids(running)[1]
            async with stopped(pid):
                document = await gateway.do("rollback")
                assert ("rolling_back", 0.0) == (document["state"], document["weight"])
                async with stopped(running.process.pid):
                    pass
                async with stopped(shadow_pids(gateway)[-1]):
                    document = await gateway.cutover()
                    assert ("rolling_back", 0.0) == (document["state"], document["weight"])
                running.process.send_signal(signal.SIGKILL)
        async with migrating(tmp_path, addresses, 2) as gateway:
            assert {"old"} == set(await gateway.ask(20))
            after = await gateway.reaches("rolled_back")
            assert (place(document), document["epoch"]) == (place(after), after["epoch"])
            await is_balanced(gateway)


OPEN = """
state: {{directory: {folder}}}
upstreams: {{old: {{url: "oip+grpc://{old}"}}, new: {{url: "oip+grpc://{new}"}}}}
routes: [{{name: r, targets: [{{upstream: old}}, {{upstream: new, weight: 0}}]}}]
migrations:
  m:
    route: r
    old: old
    new: new
    cutover: {{steps: [50, 100], bake: 1h, sticky: none, guards: {{mismatch: off}}}}
"""


class OpenStream:
    """A stream of a client, which reads only when the test calls `read`.

    Args:
        replies: The replies of the model `count`.
    """

    def __init__(self, replies: AsyncIterator[Any]) -> None:
        self._replies = replies
        self.values: list[int] = []

    async def read(self, count: int | None = None) -> None:
        """Read as many replies more, or all."""
        async for reply in self._replies:
            if reply.outputs:
                self.values.append(int(as_numpy(reply.outputs[0])[0]))
                if count is not None and (count := count - 1) == 0:
                    return


class OpenSequence:
    """A sequence of a client on a connection of its own.

    Args:
        address: Of the gateway.
        number: Of the sequence.
    """

    def __init__(self, address: str, number: int) -> None:
        self._connection = HTTPConnection(address, timeout=PATIENCE_S)
        self._number = number

    async def add(self, value: int, *, start: bool = False, end: bool = False) -> int:
        """Send a number, and return the sum so far."""
        return await asyncio.to_thread(self._add, value, start, end)

    def _add(self, value: int, start: bool, end: bool) -> int:
        tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
        parameters = {
            "sequence_id": self._number,
            "sequence_start": start,
            "sequence_end": end,
        }
        body = json.dumps({"inputs": [tensor], "parameters": parameters})
        self._connection.request("POST", "/v2/models/sum/infer", body)
        response = self._connection.getresponse()
        document = json.loads(response.read())
        assert response.status == 200, document
        found: int = document["outputs"][0]["data"][0]
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_open_streams_and_sequences_stay_at_their_server(
    tmp_path: Path, workers: int
) -> None:
    """They finish at the old server at 100 %, and at the new one after the rollback."""
    async with servers(2) as found:
        text = HEAD.format(workers=workers) + OPEN.format(
            folder=tmp_path, old=found[1], new=found[2]
        )
        async with reloadable_beside(tmp_path / "gateway.yaml", text) as reloaded:
            gateway = MigratingGateway(reloaded)
            connected = connect(parse_url(reloaded.url("oip+grpc")))
            service = Complete(connected.service, connected.needs)
            address = reloaded.running.addresses["main.http"]

            async def begin(number: int, length: int) -> tuple[OpenStream, OpenSequence]:
                call = StreamInferRequest(request=infer_request("count", length))
                replies = await service(call)
                stream = OpenStream(aiter(replies))
                await stream.read(2)
                sequence = OpenSequence(address, number)
                assert 1 == await sequence.add(1, start=True)
                return stream, sequence

            length = 150
            stream_of_old, sequence_of_old = await begin(1, length)
            await gateway.at_step(2)
            stream_of_new, sequence_of_new = await begin(2, length)
            with closing(sequence_of_old), closing(sequence_of_new):
                assert 3 == await sequence_of_old.add(2)
                await stream_of_old.read(2)
                document = await gateway.do("rollback")
                assert 0.0 == document["weight"]
                assert 4 == await sequence_of_new.add(3)
                assert 6 == await sequence_of_old.add(3, end=True)
                assert 9 == await sequence_of_new.add(5, end=True)
            await asyncio.gather(stream_of_old.read(), stream_of_new.read())
            for stream, server in ((stream_of_old, 1), (stream_of_new, 2)):
                assert [index * STEP + server for index in range(length)] == stream.values
            # Whatever begins after the rollback is at the old server.
            stream, sequence = await begin(3, 3)
            with closing(sequence):
                assert 2 == await sequence.add(1, end=True)
            await stream.read()
            assert [1, STEP + 1, 2 * STEP + 1] == stream.values
            await connected.close()
