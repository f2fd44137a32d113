"""A cut-over as operators use it: steps, trips, and processes that are killed or stopped."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration import workers_kit
from tests.integration.cli_kit import gateway as command
from tests.integration.http_kit import eventually
from tests.integration.migration import cutover_kit as kit
from tests.integration.migration.cutover_kit import (
    GUARDED,
    MigratingGateway,
    migrating,
    state_on_disk,
    two_servers,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("workers", [1, 2])
async def test_failing_server_trips_and_loses_all_calls(tmp_path: Path, workers: int) -> None:
    """Each process stops at its fourth error, then the leader rolls back for all."""
    async with two_servers() as servers, migrating(tmp_path, servers, workers) as gateway:
        assert {"old"} == set(await gateway.ask(20))
        await gateway.at_step(2)
        assert ["new"] * 60 == await gateway.ask(60)
        kit.FAULTS.add("new")
        replies = await gateway.ask(60)
        failed = [reply for reply in replies if reply not in {"old", "new"}]
        assert 4 <= len(failed) <= 4 * workers, replies
        document = await gateway.reaches("rolled_back")
        assert (0.0, 2) == (document["weight"], document["step"])
        assert "tripped" in document["reason"]
        assert {"old"} == set(await gateway.ask(40))
        assert (0.0, "rolled_back") == (
            state_on_disk(tmp_path)["weight"],
            state_on_disk(tmp_path)["phase"],
        )
        status, verdict = await gateway.get("/verdict")
        assert (200, "trips") == (status, verdict["verdict"])

        async def logged() -> list[str]:  # an event is written after the state that it tells of
            found = [each["event"] for each in (await gateway.cutover())["events"]]
            return found if found[-1] == "cutover rolled back" else []

        expected = {"cutover step", "cutover waits", "cutover tripped", "cutover rolled back"}
        assert expected == set(await eventually(logged))


@pytest.mark.parametrize("errors", ["", ", errors: off"])
async def test_a_dead_server_gets_no_call_of_a_client(tmp_path: Path, errors: str) -> None:
    """A plan with a guard of mismatches alone does not leave the mirror: no reply is compared."""
    options = f"guards: {{mismatch: {{below: 20%}}{errors}}}"
    async with two_servers() as servers, migrating(tmp_path, servers, options=options) as gateway:
        kit.FAULTS.add("new")
        await gateway.do("start")
        replies = []
        async with asyncio.timeout(60):
            while ((await gateway.get())[1]["evidence"] or {}).get("compared", 0) < 40:
                replies += await gateway.ask(10)
        assert {"old"} == set(replies)
        if not errors:
            document = await gateway.reaches("rolled_back")
            assert document["reason"].startswith("errors.above_old tripped: ")
            return
        async with asyncio.timeout(60):  # the leader looks at the evidence at times
            while (document := await gateway.cutover())["guards"][0]["evidence"] == "no comparison":
                await gateway.ask(1)
        assert ("mirroring", 0, 0.0) == tuple(document[key] for key in ("state", "step", "weight"))
        assert 0 == document["calls"]["found"]
        (guard,) = document["guards"]
        assert ("undecided", "0 of 0,") == (guard["verdict"], guard["evidence"][:7])


async def test_calls_that_fail_end_no_step(tmp_path: Path) -> None:
    """Without a guard of errors, a step waits for replies of the new server."""
    options = "guards: {errors: off}"
    async with two_servers() as servers, migrating(tmp_path, servers, options=options) as gateway:
        kit.FAULTS.add("new")
        await gateway.at_step(1)
        async with asyncio.timeout(60):
            while (document := await gateway.cutover())["bake"]["passed_s"] < 2:
                await gateway.ask(10)
        assert ("baking", 1) == (document["state"], document["step"])
        assert 0 == document["calls"]["found"] < document["calls"]["failed"]
        assert "50%" not in document["next"]
        assert "after 1 answered calls" in document["next"]


async def replies_of(gateway: MigratingGateway, ends: asyncio.Event) -> list[tuple[float, str]]:
    """Make one call after another; return when each reply came, and which server it is of."""
    found = []
    while not ends.is_set():
        (reply,) = await gateway.ask(1)
        found.append((time.monotonic(), reply))
    return found


async def only_new(gateway: MigratingGateway) -> None:
    """Wait until five calls have replies of the new server alone."""

    async def is_new() -> bool:
        return {"new"} == set(await gateway.ask(5))

    await eventually(is_new)


def seconds_of_failures(replies: list[tuple[float, str]]) -> float:
    """Return the time from the second call that failed to the last one."""
    failed = sorted(at_s for at_s, reply in replies if reply not in {"old", "new"})
    assert len(failed) >= 2
    return failed[-1] - failed[1]


@pytest.mark.slow
async def test_rollback_takes_two_seconds_from_the_second_error(
    tmp_path: Path,
) -> None:
    """Two workers roll back while clients call without pause."""
    async with two_servers() as servers, migrating(tmp_path, servers, 2) as gateway:
        await gateway.at_step(2)
        ends = asyncio.Event()
        clients = [asyncio.create_task(replies_of(gateway, ends)) for _ in range(4)]
        assert {"new"} == set(await gateway.ask(20))
        kit.FAULTS.add("new")
        await gateway.reaches("rolled_back")
        ends.set()
        replies = [each for client in clients for each in await client]
        assert {"old"} == set(await gateway.ask(20))
        assert seconds_of_failures(replies) <= 2


@pytest.mark.slow
async def test_three_gateways_roll_back_within_five_seconds(tmp_path: Path) -> None:
    """Clients call all three without pause; errors at one of them count for all."""
    options = f"coordinate: file\n      directory: {tmp_path / 'shared'}\n      {GUARDED}"
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(two_servers())
        gateways = []
        for name in "abc":
            (tmp_path / name).mkdir()
            started = migrating(tmp_path / name, servers, options=options)
            gateways.append(await stack.enter_async_context(started))
        await gateways[0].at_step(2)
        for each in gateways:
            await only_new(each)
        ends = asyncio.Event()
        clients = [asyncio.create_task(replies_of(each, ends)) for each in gateways]
        assert {"new"} == set(await gateways[2].ask(20))
        kit.FAULTS.add("new")
        for each in gateways:
            await each.reaches("rolled_back")
        for each in gateways:
            assert {"old"} == set(await each.ask(5))
        ends.set()
        assert seconds_of_failures([each for client in clients for each in await client]) <= 5


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_users_move_by_steps_and_stay_moved(tmp_path: Path, workers: int) -> None:
    """At 50 % about half of the users move, the same in each process; in the end all."""
    async with (
        two_servers() as servers,
        migrating(tmp_path, servers, workers, kit.UNCOMPARED) as gateway,
    ):
        await gateway.at_step(1)
        await gateway.do("pause")
        first = await gateway.ask(100, users=100)
        assert 25 < first.count("new") < 75
        assert first == await gateway.ask(100, users=100)
        await gateway.do("resume")
        async with asyncio.timeout(60):
            while (await gateway.cutover())["state"] != "done":
                await gateway.ask(10)
        assert {"new"} == set(await gateway.ask(40))
        document = await gateway.do("rollback")
        assert 0.0 == document["weight"]
        assert {"old"} == set(await gateway.ask(40))
        page = await asyncio.to_thread(gateway.gateway.admin, "GET", "/metrics")
        assert 'gateway_cutover_weight{migration="m"} 0.0' in page[1]


@pytest.mark.slow
async def test_restart_after_a_kill_continues_at_the_step(tmp_path: Path) -> None:
    """After kill -9 of all processes, the first call has the weight of the step."""
    async with two_servers() as servers:
        for step, expected in ((2, "new"), (0, "old")):
            async with migrating(tmp_path, servers, 2) as gateway:
                if step:
                    await gateway.at_step(step)
                else:
                    await gateway.do("rollback")
                gateway.gateway.running.process.send_signal(signal.SIGKILL)
            async with migrating(tmp_path, servers, 2) as gateway:
                assert {expected} == set(await gateway.ask(20))
                document = await gateway.cutover()
                assert document["weight"] == {"new": 100.0, "old": 0.0}[expected]


@pytest.mark.slow
async def test_restart_after_a_kill_restores_all_guards(tmp_path: Path) -> None:
    """Without a call after kill -9, each guard has the calls that were on disk."""
    options = (
        "guards: {mismatch: {below: 1%}, errors: {below: 1%, above_old: 1%}, "
        "latency: {p99: 60s, p99_ratio: 9}}"
    )

    def counts(document: dict[str, Any]) -> dict[str, int]:
        """Return the number of calls of each guard."""
        return {
            each["guard"]: max([0, *map(int, re.findall(r"(\d+)(?: calls)?,", each["evidence"]))])
            for each in document["guards"]
        }

    async with two_servers() as servers:
        async with migrating(tmp_path, servers, options=options) as gateway:
            await gateway.do("start")
            await gateway.ask(30)

            def is_on_disk() -> bool:
                found = state_on_disk(tmp_path)["comparisons"].get("guards", {})
                return len(found.get("latency.p99", ())) == 61

            await asyncio.to_thread(workers_kit.eventually, is_on_disk)
            before = counts(await gateway.cutover())
            gateway.gateway.running.process.send_signal(signal.SIGKILL)
        expected = dict.fromkeys(
            ("mismatch.below", "errors.below", "errors.above_old", "latency.p99"), 30
        )
        assert expected == {guard: before[guard] for guard in expected}
        async with migrating(tmp_path, servers, options=options) as gateway:

            async def has_counts() -> bool:
                return before == counts(await gateway.cutover())

            await eventually(has_counts)


@pytest.mark.slow
async def test_new_and_resumed_workers_get_the_current_weight(tmp_path: Path) -> None:
    """A replaced worker starts with the weight; a stopped one gets it when it resumes."""
    async with two_servers() as servers, migrating(tmp_path, servers, 2) as gateway:
        running = gateway.gateway.running
        await gateway.at_step(2)
        first = workers_kit.pids(running)
        workers_kit.end(first[1], signal.SIGKILL)
        await asyncio.to_thread(
            workers_kit.eventually, lambda: workers_kit.pids(running)[1] != first[1]
        )
        assert {"new"} == set(await gateway.ask(40))
        workers_kit.end(first[2], signal.SIGSTOP)
        try:
            document = await gateway.do("rollback")
            assert ("rolling_back", 0.0) == (document["state"], document["weight"])
        finally:
            workers_kit.end(first[2], signal.SIGCONT)
        await gateway.reaches("rolled_back")
        assert {"old"} == set(await gateway.ask(40))


@pytest.mark.slow
async def test_stopped_leader_keeps_weights_and_guards(tmp_path: Path) -> None:
    """Clients notice nothing, and a failing server still loses its calls."""
    async with two_servers() as servers, migrating(tmp_path, servers, 2) as gateway:
        process = gateway.gateway.running.process
        await gateway.at_step(2)
        process.send_signal(signal.SIGSTOP)
        try:
            assert {"new"} == set(await gateway.ask(40))
            kit.FAULTS.add("new")
            replies = await gateway.ask(60)
            assert "old" == replies[-1]
            assert 4 <= len([reply for reply in replies if reply != "old"]) <= 8, replies
        finally:
            process.send_signal(signal.SIGCONT)
        await gateway.reaches("rolled_back")


async def test_command_line_shows_and_controls_a_cutover(tmp_path: Path) -> None:
    """`cutover` prints state, guards and the next step; `wait` reports how it ended."""
    async with two_servers() as servers, migrating(tmp_path, servers) as gateway:
        admin = gateway.gateway.running.addresses["admin"]

        async def run(*arguments: str) -> tuple[int, str]:
            done = await asyncio.to_thread(command, "cutover", *arguments, "m", "--admin", admin)
            return done.returncode, done.stdout + done.stderr

        assert (0, "ready: 0% to new\n") == (
            (await run("status"))[0],
            (await run("status"))[1][:17],
        )
        status, text = await run("start")
        assert 0 == status
        assert "step 0 of 2: 0% to new, mirroring 0s of 1s, 0 of 1 comparisons" in text
        assert "errors.below  undecided" in text
        assert "next: 50%, after 1s of bake time and after 1 comparisons" in text
        status, text = await run("start")
        assert (1, True) == (status, "is mirroring, and 'start' expects one of: ready" in text)
        status, text = await run("wait", "--timeout", "10ms")
        assert (1, True) == (status, "is not done after 0.01s" in text)
        assert 2 == (await run("wait", "--timeout", "soon"))[0]
        assert 2 == (await run("pause", "--at-step", "1"))[0]
        await run("pause")
        status, text = await run("wait")
        line = (
            "step 0 of 2: 0% to new, paused: paused by an operator: 0% of the calls stay with new\n"
        )
        assert (1, line) == (status, text)
        status, text = await run("resume", "--at-step", "2")
        assert (0, True) == (status, "step 2 of 2: 100% to new, baking 0s of 1s" in text)
        status, text = await run("rollback", "--output", "json")
        assert (0, True) == (status, '"weight": 0.0' in text)


COMPARED = "guards: {mismatch: {below: 20%}, errors: {below: 20%}, latency: {p99: 60s}}"


async def test_comparisons_advance_and_roll_back(tmp_path: Path) -> None:
    """A new server that agrees gets all calls; wrong replies trip `mismatch` alone."""
    async with two_servers() as servers, migrating(tmp_path, servers, options=COMPARED) as gateway:
        await gateway.do("start")
        async with asyncio.timeout(90):
            while (await gateway.cutover())["state"] != "done":
                assert {"old", "new"} >= set(await gateway.ask(20))
        status, verdict = await gateway.get("/verdict")
        assert (200, "holds") == (status, verdict["verdict"])
        kit.FAULTS.add("wrong")
        async with asyncio.timeout(60):
            while (document := await gateway.cutover())["state"] != "rolled_back":
                assert {"old", "new", "wrong"} >= set(await gateway.ask(20))
        assert "mismatch.below" == document["tripped"]
        assert ["mismatch.below"] == [
            each["guard"] for each in document["guards"] if each["verdict"] == "trips"
        ]
        assert {"old"} == set(await gateway.ask(20))


@pytest.mark.slow
async def test_killed_shadow_process_fails_no_call(tmp_path: Path) -> None:
    """The weight stays; the next step waits for comparisons and proceeds with them."""
    async with two_servers() as servers, migrating(tmp_path, servers, options=COMPARED) as gateway:
        await gateway.do("start")
        async with asyncio.timeout(90):
            while (await gateway.cutover())["step"] == 0:
                await gateway.ask(20)
        pids = [line["pid"] for line in gateway.gateway.events("shadow process started")]
        workers_kit.end(pids[-1], signal.SIGKILL)
        assert {"old", "new"} == set(await gateway.ask(20))
        async with asyncio.timeout(90):
            while (await gateway.cutover())["state"] != "done":
                assert {"old", "new"} >= set(await gateway.ask(20))


@pytest.mark.slow
async def test_two_gateways_share_a_cutover(tmp_path: Path) -> None:
    """Both use the leader's weights; a trip at either one counts for both."""
    options = f"coordinate: file\n      directory: {tmp_path / 'shared'}\n      {GUARDED}"
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    async with (
        two_servers() as servers,
        migrating(folders[0], servers, options=options) as first,
        migrating(folders[1], servers, options=options) as other,
    ):
        await first.at_step(2)
        await only_new(other)
        assert [True, False] == [(await each.cutover())["leads"] for each in (first, other)]
        kit.FAULTS.add("new")
        replies = await other.ask(30)
        assert 4 == len([reply for reply in replies if reply != "old"]), replies
        for each in (first, other):
            document = await each.reaches("rolled_back")
            assert "tripped" in document["reason"]
        assert {"old"} == set(await first.ask(20))
