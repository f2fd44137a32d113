"""Cut-overs of several gateways by a Lease and ConfigMaps: the real client, a fake API server."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import incluster_config
from structlog.testing import capture_logs

from gateway.api.start_error import StartError
from gateway.config.load import ConfigError, load_text
from gateway.ir.errors import ErrorCode
from gateway.migration.cutover import kubernetes_replicas
from gateway.migration.cutover.files import StateConflict, UnusableState, encode_state
from gateway.migration.cutover.kubernetes_replicas import (
    ApiServer,
    ApiUnreachable,
    ClusterReplicas,
)
from gateway.migration.cutover.states import Phase
from gateway.migration.cutover.steps import CommandRefused, CutoverEvent, CutoverState
from tests.fakes import FakeClock
from tests.unit.migration.cutover.fake_api_server import FakeApiServer
from tests.unit.migration.cutover.test_controller import TEXT, Leader, second, start_and_pause

KUBERNETES = "coordinate: kubernetes"
LEASE = "leases", "tensor-gateway-m"
STATE = "configmaps", "tensor-gateway-m"

EnterPod = Callable[[str], None]
"""Let gateways that begin from now on be those of the pod with this name."""


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    with server.running():
        yield server


@pytest.fixture
def enter_pod(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnterPod:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "namespace").write_text("models\n")
    server.authority.cert_pem.write_to_path(folder / "ca.crt")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(folder / "ca.crt"))
    monkeypatch.setattr(kubernetes_replicas, "_NAMESPACE", folder / "namespace")
    monkeypatch.setattr(kubernetes_replicas, "_TIMEOUT_S", (30.0, 30.0))

    def enter(pod: str) -> None:
        token = folder / f"token-{pod}"
        token.write_text(f"token-{pod}")
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(
            "gateway.migration.cutover.controller.own_name", lambda: f"gateway-{pod}-1"
        )

    return enter


@pytest.fixture
async def replicas(enter_pod: EnterPod, tmp_path: Path) -> Any:
    """Three gateways; the first one leads."""
    found = []
    for name in "abc":
        enter_pod(name)
        found.append(Leader(tmp_path / name, KUBERNETES))
    yield found
    for each in found:
        await each.controller.stop()


def leads(replicas: list[Leader]) -> list[bool]:
    return [each.controller.document("m")["leads"] for each in replicas]  # type: ignore[index]


def shares(replicas: list[Leader]) -> list[list[float]]:
    return [each.processes.shares for each in replicas]


def saved(server: FakeApiServer) -> Any:
    return json.loads(server.objects[STATE]["data"]["state"])["state"]


async def test_the_elected_leader_sets_the_weight_of_all_replicas(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """The Lease names the leader, the ConfigMap has the state; the leader counts all calls."""
    await start_and_pause(replicas)
    assert [True, False, False] == leads(replicas)
    spec = server.objects[LEASE]["spec"]
    assert spec["holderIdentity"].startswith("gateway-a-1-")
    assert (15, 1) == (spec["leaseDurationSeconds"], spec["leaseTransitions"])
    assert ("paused", 5.0) == (saved(server)["phase"], saved(server)["weight"])
    assert [("paused", 1, 5.0)] * 3 == [each.at for each in replicas]
    assert [[0.05, 0.05]] * 3 == shares(replicas)
    before = replicas[0].controller.document("m")["calls"]["found"]  # type: ignore[index]
    await second(replicas, calls=10)
    after = replicas[0].controller.document("m")["calls"]["found"]  # type: ignore[index]
    assert before + 30 == after
    events = [each.controller.document("m")["events"] for each in replicas]  # type: ignore[index]
    assert [events[0]] * 3 == events
    assert "cutover step" in [each["event"] for each in events[0]]


@pytest.mark.parametrize("tripping", [0, 1, 2])
async def test_a_trip_at_any_replica_sets_all_replicas_to_weight_0(
    replicas: list[Leader], tripping: int
) -> None:
    """The process has weight 0 at once, all gateways two seconds later."""
    await start_and_pause(replicas)
    replicas[tripping].processes.calls(4, ErrorCode.UNAVAILABLE)
    assert [0.0, 0.05] == replicas[tripping].processes.shares
    for _ in range(2):
        await second(replicas)
    assert [[0.0, 0.0]] * 3 == shares(replicas)
    for _ in range(2):
        await second(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]


async def test_a_stopping_leader_releases_the_lease(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """Another replica continues at the same step at once."""
    await start_and_pause(replicas)
    await replicas[0].controller.stop()
    assert server.objects[LEASE]["spec"].get("holderIdentity", "") == ""
    rest = replicas[1:]
    for _ in range(4):
        await second(rest, verdicts="hh")
    assert 1 == leads(rest).count(True)
    leader = rest[leads(rest).index(True)]
    assert ("paused", 1, 5.0) == leader.at
    await leader.do("rollback")
    await second(rest, verdicts="hh")
    assert [[0.0, 0.0]] * 2 == shares(rest)


async def test_a_silent_leader_is_replaced_after_fifteen_seconds(replicas: list[Leader]) -> None:
    """Weights stay until another replica leads; the old leader follows when it resumes."""
    await start_and_pause(replicas)
    rest = replicas[1:]
    for _ in range(14):
        await second(rest, verdicts="hh")
        assert [False, False] == leads(rest)
        assert [[0.05, 0.05]] * 2 == shares(rest)
    for _ in range(8):
        await second(rest, verdicts="hh")
    assert 1 == leads(rest).count(True)
    leader = rest[leads(rest).index(True)]
    assert ("paused", 1, 5.0) == leader.at
    await leader.do("rollback")
    # As after SIGSTOP: its last renewal is long ago, though it knows nothing of it.
    replicas[0].clock.advance(22)
    assert [True] == leads(replicas[:1])
    with pytest.raises(CommandRefused, match="another gateway has changed the cut-over of 'm'"):
        await replicas[0].do("resume")
    await second(replicas)
    assert [False] == leads(replicas[:1])
    assert [[0.0, 0.0]] * 3 == shares(replicas)


async def test_a_disconnected_leader_stops_deciding_at_once(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """Its weights stay, its own guard works, one warning is logged; another gateway leads."""
    await start_and_pause(replicas)
    await replicas[0].do("resume")
    await second(replicas)
    server.cut_off.add("token-a")
    rest = replicas[1:]
    with capture_logs() as logs:
        # It renews its Lease every three seconds, and reads the reports of the others every second.
        await replicas[0].seconds(1, 1000)
        assert [False] == leads(replicas[:1])
        await replicas[0].seconds(9, 1000)
    assert ("baking", 1, 5.0) == replicas[0].at
    assert [0.05, 0.05] == replicas[0].processes.shares
    problems = [each for each in logs if each["log_level"] in ("warning", "error")]
    assert ["Kubernetes unreachable"] == [each["event"] for each in problems]
    with pytest.raises(CommandRefused, match="out of reach: the API server of Kubernetes cannot"):
        await replicas[0].do("pause")
    replicas[0].processes.calls(30, ErrorCode.UNAVAILABLE)
    assert [0.0, 0.05] == replicas[0].processes.shares
    for _ in range(22):
        await second(rest, verdicts="hh")
    assert 1 == leads(rest).count(True)
    server.cut_off.clear()
    for _ in range(4):
        await second(replicas)
    # The trip of the one that was cut off counts for all.
    assert [[0.0, 0.0]] * 3 == shares(replicas)
    assert 1 == leads(replicas).count(True)


async def test_a_rollback_works_while_the_api_server_is_unreachable(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """The operator's gateway has weight 0 at once, all others when the API server returns."""
    await start_and_pause(replicas)
    server.cut_off.update({"token-a", "token-b", "token-c"})
    await second(replicas)
    before = saved(server)
    with capture_logs() as logs:
        document = await replicas[0].do("rollback")
    assert ("rolling_back", 0.0) == (document["state"], document["weight"])
    assert "the API server of Kubernetes cannot be reached" in document["reason"]
    assert ["cutover rolled back here only"] == [each["event"] for each in logs]
    assert [[0.0, 0.0], [0.05, 0.05], [0.05, 0.05]] == shares(replicas)
    for _ in range(5):
        await second(replicas)
    assert [[0.0, 0.0], [0.05, 0.05], [0.05, 0.05]] == shares(replicas)
    assert before == saved(server)
    with pytest.raises(CommandRefused, match="out of reach"):
        await replicas[0].do("resume")
    server.cut_off.clear()
    for _ in range(6):
        await second(replicas)
    assert [[0.0, 0.0]] * 3 == shares(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]
    assert ("rolled_back", 0.0, before["epoch"] + 1) == tuple(
        saved(server)[key] for key in ("phase", "weight", "epoch")
    )
    trips = [sum(each.controller._cutovers["m"].trips.values()) for each in replicas]
    assert [1, 0, 0] == trips


@pytest.mark.parametrize("at", [0, 1])
async def test_a_rollback_of_a_disconnected_gateway_overrides_later_steps(
    replicas: list[Leader], server: FakeApiServer, at: int
) -> None:
    """The new leader rolls back once it learns of the command, whatever its epoch."""
    await start_and_pause(replicas)
    cut_off = replicas[at]
    rest = [each for each in replicas if each is not cut_off]
    server.cut_off.add(f"token-{'ab'[at]}")
    await second(replicas)
    await cut_off.do("rollback")
    assert [0.0, 0.0] == cut_off.processes.shares
    for _ in range(22):
        await second(rest, verdicts="hh")
    leader = rest[leads(rest).index(True)]
    before = saved(server)["attempt"]
    # The state of another gateway, of the same attempt and a later epoch.
    leader.controller._cutovers["m"].state = replace(
        leader.controller._cutovers["m"].state, weight=100.0, epoch=saved(server)["epoch"] + 3
    )
    for _ in range(6):
        await second(rest, verdicts="hh")
    assert (100.0, before) == (saved(server)["weight"], saved(server)["attempt"])
    assert [0.0, 0.0] == cut_off.processes.shares
    server.cut_off.clear()
    for _ in range(8):
        await second(replicas)
        assert [0.0, 0.0] == cut_off.processes.shares
    assert [[0.0, 0.0]] * 3 == shares(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]


async def test_a_rollback_of_an_earlier_attempt_is_ignored(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """A resume at another gateway overrides the earlier rollback."""
    await start_and_pause(replicas)
    server.cut_off.add("token-b")
    await second(replicas)
    await replicas[1].do("rollback")
    await replicas[0].do("resume")
    server.cut_off.clear()
    for _ in range(4):
        await second(replicas, verdicts="huu")
    assert ["baking"] * 3 == [each.at[0] for each in replicas]
    assert [[0.05, 0.05]] * 3 == shares(replicas)


async def test_an_unwritable_rollback_applies_locally_at_once(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """The API server fails, or another writer changes the state just before the command."""
    await start_and_pause(replicas)
    server.cut_off.add("token-a")
    assert [True] == leads(replicas[:1])
    await replicas[0].do("rollback")
    assert [0.0, 0.0] == replicas[0].processes.shares
    assert "paused" == saved(server)["phase"]
    server.cut_off.clear()
    for _ in range(4):
        await second(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]
    await replicas[0].do("resume", at_step=1)
    await second(replicas, verdicts="uuu")
    server.put(*STATE, {**server.objects[STATE], "labels": "changed"})
    await replicas[0].do("rollback")
    assert [0.0, 0.0] == replicas[0].processes.shares
    for _ in range(4):
        await second(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]


async def test_an_unwritten_rollback_is_logged_as_an_error_at_stop(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """The gateway stops before the API server is reachable again."""
    await start_and_pause(replicas)
    server.cut_off.add("token-a")
    await second(replicas)
    await replicas[0].do("rollback")
    with capture_logs() as logs:
        await replicas[0].controller.stop()
    (line,) = [each for each in logs if each["log_level"] == "error"]
    assert "cutover rollback not written" == line["event"]


async def test_a_local_rollback_survives_a_kill(
    replicas: list[Leader], server: FakeApiServer, enter_pod: EnterPod, tmp_path: Path
) -> None:
    """The restarted gateway has weight 0 from the first call, and rolls back all replicas."""
    await start_and_pause(replicas)
    server.cut_off.update({"token-a", "token-b", "token-c"})
    await second(replicas)
    await replicas[0].do("rollback")
    # No `stop`: a process that is killed writes nothing more.
    pending = tmp_path / "a" / "cutover" / "m.rollback.json"
    assert {"attempt": saved(server)["attempt"]} == json.loads(pending.read_bytes())
    enter_pod("a")
    killed, replicas[0] = replicas[0], Leader(tmp_path / "a", KUBERNETES)
    assert 0.0 == replicas[0].controller.weights()["m"][0]
    assert [0.0, 0.0] == replicas[0].processes.shares
    for _ in range(3):
        await second(replicas)
    assert [[0.0, 0.0], [0.05, 0.05], [0.05, 0.05]] == shares(replicas)
    assert pending.exists()
    server.cut_off.clear()
    # The Lease of the killed gateway runs out first.
    for _ in range(24):
        await second(replicas)
        assert [0.0, 0.0] == replicas[0].processes.shares
    assert [[0.0, 0.0]] * 3 == shares(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]
    assert not pending.exists()
    await killed.controller.stop()


async def test_a_resume_overrides_a_rollback_from_before_a_kill(
    replicas: list[Leader], server: FakeApiServer, enter_pod: EnterPod, tmp_path: Path
) -> None:
    """The restarted gateway begins with the share of the later attempt."""
    await start_and_pause(replicas)
    server.cut_off.add("token-b")
    await second(replicas)
    await replicas[1].do("rollback")
    await replicas[0].do("resume")
    for _ in range(4):
        await second(replicas, verdicts="huu")
    assert 5.0 == saved(server)["weight"]
    server.cut_off.clear()
    enter_pod("b")
    killed, replicas[1] = replicas[1], Leader(tmp_path / "b", KUBERNETES)
    assert [0.05, 0.05] == replicas[1].processes.shares
    await second(replicas)
    assert not (tmp_path / "b" / "cutover" / "m.rollback.json").exists()
    await killed.controller.stop()


async def test_a_damaged_rollback_file_is_logged_as_an_error(
    enter_pod: EnterPod, tmp_path: Path
) -> None:
    """The gateway starts with the state of the cluster."""
    folder = tmp_path / "a" / "cutover"
    folder.mkdir(parents=True)
    (folder / "m.rollback.json").write_bytes(b'{"attempt": "x"}')
    enter_pod("a")
    with capture_logs() as logs:
        leader = Leader(tmp_path / "a", KUBERNETES)
    assert ["cutover rollback lost"] == [
        each["event"] for each in logs if each["log_level"] == "error"
    ]
    assert "ready" == leader.at[0]
    await leader.controller.stop()


async def test_a_disconnected_gateway_cannot_roll_back_an_idle_cutover(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    server.cut_off.add("token-a")
    for _ in range(2):
        await second(replicas)
    with pytest.raises(CommandRefused, match="out of reach"):
        await replicas[0].do("rollback")


async def test_a_disconnected_follower_keeps_its_weight(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """The others continue without it after fifteen seconds; it catches up later."""
    await start_and_pause(replicas)
    server.cut_off.add("token-c")
    await replicas[0].do("rollback")
    for _ in range(12):
        await second(replicas)
    assert "rolling_back" == replicas[0].at[0]
    assert [[0.0, 0.0], [0.0, 0.0], [0.05, 0.05]] == shares(replicas)
    for _ in range(8):
        await second(replicas)
    assert "rolled_back" == replicas[0].at[0]
    server.cut_off.clear()
    for _ in range(3):
        await second(replicas)
    assert [[0.0, 0.0]] * 3 == shares(replicas)


async def test_a_stalled_api_server_changes_no_weight(
    replicas: list[Leader], server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call times out, and the event loop is not blocked."""
    await start_and_pause(replicas)
    server.stalled.add("token-a")
    monkeypatch.setattr(kubernetes_replicas, "_TIMEOUT_S", (0.3, 0.3))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(turn())
    with capture_logs() as logs:
        await replicas[0].seconds()
    turning.cancel()
    assert turns > 10
    assert [False] == leads(replicas[:1])
    assert [0.05, 0.05] == replicas[0].processes.shares
    assert ["Kubernetes unreachable"] == [
        each["event"] for each in logs if each["log_level"] == "warning"
    ]


async def test_a_short_failure_does_not_reset_the_bake_time(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """The same gateway leads again and keeps its counts."""
    await start_and_pause(replicas)
    await replicas[0].do("resume")
    for _ in range(3):
        await second(replicas, verdicts="huu")
    before = replicas[0].controller.document("m")["bake"]["passed_s"]  # type: ignore[index]
    server.statuses["token-a"] = 503
    await second(replicas, verdicts="huu")
    assert [False, False, False] == leads(replicas)
    server.statuses.clear()
    for _ in range(3):
        await second(replicas, verdicts="huu")
    assert [True, False, False] == leads(replicas)
    after = replicas[0].controller.document("m")["bake"]["passed_s"]  # type: ignore[index]
    assert after >= before
    assert 1 == server.objects[LEASE]["spec"]["leaseTransitions"]


async def test_a_state_conflict_is_resolved_by_another_read(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """The other change is kept, and a trip still counts in the same second."""
    await start_and_pause(replicas)
    found = server.objects[STATE]
    changed = {**found, "data": {**found["data"], "note": "of somebody else"}}
    server.put(*STATE, changed)
    with pytest.raises(CommandRefused, match="expected the command again"):
        await replicas[0].do("resume")
    assert "paused" == replicas[0].at[0]
    await second(replicas)
    assert [True, False, False] == leads(replicas)
    server.put(*STATE, {**server.objects[STATE], "labels": "changed again"})
    await second(replicas, verdicts="thh")
    assert "rolling_back" == saved(server)["phase"]
    assert "of somebody else" == server.objects[STATE]["data"]["note"]
    await second(replicas)
    assert [[0.0, 0.0]] * 3 == shares(replicas)


async def test_a_state_of_an_older_epoch_is_rejected(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    """A ConfigMap from a backup cannot send calls to the new target again."""
    await start_and_pause(replicas)
    old = server.objects[STATE]
    await replicas[0].do("rollback")
    for _ in range(3):
        await second(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]
    server.put(*STATE, old)
    assert 5.0 == saved(server)["weight"]
    with capture_logs() as logs:
        for _ in range(2):
            await second(replicas[1:], verdicts="hh")
    assert [[0.0, 0.0]] * 3 == shares(replicas)
    refused = [each for each in logs if each["event"] == "cutover state refused"]
    assert 2 == len(refused)
    assert "expected" in refused[0]["reason"]
    for _ in range(7):
        await second(replicas)
    assert 0.0 == saved(server)["weight"]
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]


async def test_a_new_gateway_starts_with_the_current_weight(
    replicas: list[Leader], enter_pod: EnterPod, tmp_path: Path
) -> None:
    """It has the weight before its first decision."""
    await start_and_pause(replicas)
    enter_pod("d")
    late = Leader(tmp_path / "d", KUBERNETES)
    assert [0.05, 0.05] == late.processes.shares
    await late.controller.stop()


async def test_a_gateway_started_without_the_api_server_has_weight_0(
    replicas: list[Leader], server: FakeApiServer, enter_pod: EnterPod, tmp_path: Path
) -> None:
    """It follows as soon as the API server is reachable."""
    await start_and_pause(replicas)
    server.cut_off.add("token-d")
    enter_pod("d")
    late = Leader(tmp_path / "d", KUBERNETES)
    await late.seconds()
    assert [0.0, 0.0] == late.processes.shares
    server.cut_off.clear()
    await late.seconds(3)
    assert [0.05, 0.05] == late.processes.shares
    await late.controller.stop()


async def test_replicas_stop_while_the_api_server_is_unreachable(
    replicas: list[Leader], server: FakeApiServer
) -> None:
    await start_and_pause(replicas)
    server.cut_off.update({"token-a", "token-b"})
    for each in replicas[:2]:
        await each.controller.stop()
    assert [[0.05, 0.05]] == shares(replicas[2:])


@pytest.fixture
def store(server: FakeApiServer, enter_pod: EnterPod) -> Iterator[Callable[..., ClusterReplicas]]:
    """Return a factory of gateways that share a clock."""
    clock, opened = FakeClock(), []

    def make(name: str, migration: str = "m") -> ClusterReplicas:
        enter_pod(name)
        api = ApiServer(clock)
        opened.append(api)
        found = ClusterReplicas(api, migration, name, lambda: 1.79e9 + clock(), clock)
        found.clock = clock  # type: ignore[attr-defined]
        return found

    yield make
    for api in opened:
        api.close()


def test_states_round_trip_and_conflicts_are_rejected(
    store: Callable[[str], ClusterReplicas], server: FakeApiServer
) -> None:
    """The writer reads no state back; a state with damage or of another plan is rejected."""
    first, second = store("a"), store("b")
    assert first.try_lead()
    assert first.load("p") is None
    state = CutoverState(Phase.BAKING, step=1, weight=5.0, epoch=3)
    first.save("p", state)
    assert first.load("p") is None
    assert not second.try_lead()
    assert second.load("p") == state
    assert second.load("p") is None
    with pytest.raises(StateConflict, match="the Lease tensor-gateway-m is lost"):
        second.save("p", state)
    with pytest.raises(UnusableState, match="ConfigMap models/tensor-gateway-m is of another plan"):
        store("c").load("q")
    damaged = encode_state("p", state).decode().replace("5.0", "7.0")
    server.put(*STATE, {**server.objects[STATE], "data": {"state": damaged}})
    with pytest.raises(UnusableState, match="checksum is wrong"):
        second.load("p")
    first.release()
    assert second.try_lead() or not second.clock.advance(3)  # type: ignore[attr-defined]
    assert second.try_lead()
    with pytest.raises(StateConflict, match="has changed"):
        second.save("p", state)  # it has not seen what it would replace
    with pytest.raises(UnusableState, match="checksum is wrong"):
        second.load("p")
    second.set_aside()
    second.save("p", state)
    assert damaged == server.objects[STATE]["data"]["state.unusable"]
    del server.objects[STATE]
    with pytest.raises(StateConflict, match="has changed"):
        second.save("p", state)


def test_a_change_between_state_and_event_is_not_lost(
    store: Callable[[str], ClusterReplicas], server: FakeApiServer
) -> None:
    """After the conflict nothing is saved until the other state has been read."""
    found = store("a")
    assert found.try_lead()
    assert found.load("p") is None
    state, other = CutoverState(epoch=3), CutoverState(epoch=4)
    found.save("p", state)
    data = {"state": encode_state("p", other).decode()}
    server.put(*STATE, {**server.objects[STATE], "data": data})
    event = CutoverEvent("cutover step", "5%")
    with pytest.raises(StateConflict, match="has changed"):
        found.append(event, state, 1.0)
    assert found.try_lead()
    with pytest.raises(StateConflict, match="has changed"):
        found.save("p", state)
    assert found.try_lead()
    assert found.load("p") == other
    found.save("p", other)
    found.append(event, other, 1.0)
    assert ["cutover step"] == [each["event"] for each in found.events()]


def test_a_paused_leader_renews_its_lease_before_it_writes(
    store: Callable[[str], ClusterReplicas], server: FakeApiServer
) -> None:
    """It stops writing five seconds before others may lead."""
    found = store("a")
    assert found.try_lead()
    assert found.load("p") is None
    found.clock.advance(10.5)  # type: ignore[attr-defined]
    with pytest.raises(StateConflict, match="the Lease tensor-gateway-m is lost"):
        found.save("p", CutoverState())
    assert STATE not in server.objects
    assert found.try_lead()
    found.save("p", CutoverState())
    assert STATE in server.objects


def test_a_restarted_process_has_another_identity(
    store: Callable[[str], ClusterReplicas],
) -> None:
    """A restarted container has the same host name and process number."""
    assert store("a").try_lead()
    assert not store("a").try_lead()


def test_one_of_two_concurrent_candidates_is_elected(
    store: Callable[[str], ClusterReplicas], server: FakeApiServer
) -> None:
    """Neither sees a Lease; the later creation fails, and that candidate waits."""
    first, second = store("a"), store("b")

    def meanwhile() -> None:
        server.before_create = None
        assert first.try_lead()

    server.before_create = meanwhile
    with capture_logs() as logs:
        assert not second.try_lead()
    assert [] == logs
    assert first.try_lead()
    holder = server.objects[LEASE]["spec"]["holderIdentity"]
    assert holder.startswith("a-")


def test_damaged_and_old_reports_are_ignored(
    store: Callable[[str], ClusterReplicas], server: FakeApiServer
) -> None:
    """A damaged report is skipped, a silent one ignored after 15 s and removed after a minute."""
    leader, other = store("a"), store("b")
    clock: FakeClock = leader.clock  # type: ignore[attr-defined]
    assert leader.try_lead()
    leader.write({"reports": {}})
    other.write({"reports": {}})
    name = next(name for _, name in server.objects if name.startswith("tensor-gateway-m.b-"))
    found = server.objects["configmaps", name]
    metadata = {**found["metadata"], "name": "damaged"}
    server.put("configmaps", "damaged", {"metadata": metadata, "data": {"report": "{"}})
    assert [(name, {"reports": {}})] == leader.others()
    for _ in range(3):
        clock.advance(6)
        other.write({"reports": {}})
        assert [(name, {"reports": {}})] == leader.others()
    clock.advance(16)
    assert [] == leader.others()
    assert ("configmaps", name) in server.objects
    clock.advance(45)
    assert [] == leader.others()
    assert ("configmaps", name) not in server.objects
    other.write({"reports": {"0": {}}})
    assert ("configmaps", name) in server.objects
    other.remove()
    other.remove()
    assert ("configmaps", name) not in server.objects


@pytest.mark.parametrize(
    ("migration", "name"),
    [
        ("fraud-v2", r"tensor-gateway-fraud-v2"),
        ("Fraud v2", r"tensor-gateway-fraud-v2-[0-9a-f]{8}"),
        ("../é", r"tensor-gateway-[0-9a-f]{8}"),
        ("x" * 90, r"tensor-gateway-x{31}-[0-9a-f]{8}"),
    ],
)
def test_migration_names_become_valid_kubernetes_names(
    store: Callable[..., ClusterReplicas], server: FakeApiServer, migration: str, name: str
) -> None:
    assert store("a", migration).try_lead()
    ((_, found),) = server.objects
    assert re.fullmatch(name, found)


def test_a_missing_permission_is_logged_once(
    store: Callable[[str], ClusterReplicas], server: FakeApiServer
) -> None:
    """A missing right for ConfigMaps is logged once, although Lease calls succeed."""
    found = store("a")
    server.rights = {each for each in server.rights if each[1] == "leases"}
    with capture_logs() as logs:
        for _ in range(5):
            assert not found.try_lead()
            found.clock.advance(3)  # type: ignore[attr-defined]
    assert ["Kubernetes unreachable"] == [each["event"] for each in logs]
    assert "replied 403 refused by the test" in logs[0]["reason"]
    assert "403" in found.trouble
    with pytest.raises(ApiUnreachable, match="403"):
        found.others()


async def test_the_gateway_does_not_start_outside_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(StartError, match="'coordinate: kubernetes' needs a pod with a service"):
        Leader(tmp_path, KUBERNETES)


async def test_a_missing_client_library_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gateway.migration.cutover.kubernetes_replicas")
    monkeypatch.delattr("gateway.migration.cutover.kubernetes_replicas", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(StartError, match=r"pip install 'tensor-gateway\[kubernetes\]'"):
        Leader(tmp_path, KUBERNETES)


def test_kubernetes_coordination_needs_no_directory(tmp_path: Path) -> None:
    """`state` is optional, and `directory` is rejected."""
    text = TEXT.replace("state: {directory: %s}\n", "")
    load_text(text % KUBERNETES)
    with pytest.raises(ConfigError, match="keeps no files; expected no 'directory'"):
        load_text(text % f"{KUBERNETES}\n      directory: {tmp_path}")
