"""A cut-over as operators have it: steps, trips, and processes that are killed or stopped."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.integration import cutover_kit as kit
from tests.integration import workers_kit
from tests.integration.cli_kit import gateway as command
from tests.integration.cutover_kit import GUARDED, migrating, state_on_disk, two_servers

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_server_that_fails_loses_all_calls(tmp_path: Path, workers: int) -> None:
    """Few clients see an error: each process stops at the fourth, and the leader all of them."""
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
        assert (409, "trips") == (status, verdict["verdict"])
        assert {"cutover step", "cutover waits", "cutover tripped", "cutover rolled back"} == {
            each["event"] for each in document["events"]
        }


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_clients_move_by_steps_and_stay_moved(tmp_path: Path, workers: int) -> None:
    """Half of the users at 50 %, the same ones in each process, and all of them at the end."""
    async with two_servers() as servers, migrating(tmp_path, servers, workers, "") as gateway:
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
async def test_a_killed_gateway_continues_where_it_was(tmp_path: Path) -> None:
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
async def test_a_new_worker_has_the_weight_of_the_moment(tmp_path: Path) -> None:
    """A worker that is killed comes back with it; one that is stopped gets it when it goes on."""
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
async def test_without_the_leader_weights_stay_and_guards_work(tmp_path: Path) -> None:
    """A stopped supervisor changes nothing for clients; a failing server is left all the same."""
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


async def test_the_command_line_shows_and_controls_it(tmp_path: Path) -> None:
    """`cutover` prints state, guards and what comes next; `wait` says how it ended."""
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
        assert (1, "step 0 of 2: 0% to new, paused: paused by an operator\n") == (status, text)
        status, text = await run("resume", "--at-step", "2")
        assert (0, True) == (status, "step 2 of 2: 100% to new, baking 0s of 1s" in text)
        status, text = await run("rollback", "--output", "json")
        assert (0, True) == (status, '"weight": 0.0' in text)


COMPARED = "guards: {mismatch: {below: 20%}, errors: {below: 20%}, latency: {p99: 60s}}"


async def test_comparisons_move_it_on_and_back(tmp_path: Path) -> None:
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


def _options(**values: str) -> str:
    return "\n      ".join(f"{key}: {value}" for key, value in values.items())


STATES = {
    "ready": ((), {"old"}),
    "mirroring": (("start",), {"old"}),
    "waiting_for_approval": (("start", "pause", "resume 1"), {"old", "new"}),
    "paused": (("start", "pause", "resume 2", "pause"), {"new"}),
    "baking": (("start", "pause", "resume 2"), {"new"}),
    "rolled_back": (("start", "rollback"), {"old"}),
    "done": (("start", "pause", "resume 2"), {"new"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
async def test_a_killed_gateway_continues_in_each_state(tmp_path: Path, state: str) -> None:
    """Step, weight and who has moved are the same from the first call on; epochs only grow."""
    commands, expected = STATES[state]
    options = _options(approve="[100]") if state == "waiting_for_approval" else ""
    if state in {"mirroring", "baking"}:
        options = GUARDED.replace("1%", "0.001%")  # it does not hold for long
    async with two_servers() as servers:
        async with migrating(tmp_path, servers, options=options) as gateway:
            for command_line in commands:
                verb, _, step = command_line.partition(" ")
                await gateway.do(verb, **({"at_step": int(step)} if step else {}))
            async with asyncio.timeout(60):
                while (before := await gateway.cutover())["state"] != state:
                    await gateway.ask(4)
            answers = await gateway.ask(20)
            gateway.gateway.running.process.send_signal(signal.SIGKILL)
        assert expected == set(answers)
        async with migrating(tmp_path, servers, options=options) as gateway:
            assert answers == await gateway.ask(20)
            after = await gateway.cutover()
            assert (before["step"], before["weight"]) == (after["step"], after["weight"])
            assert after["epoch"] >= before["epoch"]
            assert after["state"] in {state, "baking"}


@pytest.mark.slow
async def test_a_killed_shadow_process_stops_no_call(tmp_path: Path) -> None:
    """The weight stays, the next step waits for comparisons, and goes on with them."""
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
    """Both have the weights of the one that leads; a trip at the other one counts for both."""
    options = _options(coordinate="file", directory=str(tmp_path / "shared"))
    options += f"\n      {GUARDED}"
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    async with (
        two_servers() as servers,
        migrating(folders[0], servers, options=options) as first,
        migrating(folders[1], servers, options=options) as other,
    ):
        await first.at_step(2)
        async with asyncio.timeout(60):
            while {"new"} != set(await other.ask(5)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert [True, False] == [(await each.cutover())["leads"] for each in (first, other)]
        kit.FAULTS.add("new")
        replies = await other.ask(30)
        assert 4 == len([reply for reply in replies if reply != "old"]), replies
        for each in (first, other):
            document = await each.reaches("rolled_back")
            assert "tripped" in document["reason"]
        assert {"old"} == set(await first.ask(20))
