"""CutoverController: the leader's decisions by reports, and the order of its writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from gateway.app.build.parts import LeadingParts
from gateway.app.run.reload import Reloader
from gateway.app.run.runtime_changes import RuntimeChanges
from gateway.config.load import ConfigError, LoadedConfig, load_text
from gateway.ir.errors import ErrorCode
from gateway.migration.commands.cutover import cutover_lines
from gateway.migration.cutover.controller import CutoverController
from gateway.migration.cutover.replicas import Replicas
from gateway.migration.cutover.reported import most_frequent, replies_of
from gateway.migration.cutover.shifts import ServingShifts, ShiftWeights
from gateway.migration.cutover.steps import CommandRefused
from gateway.migration.evidence.verdicts import Standing
from tests.fakes import FakeClock
from tests.integration.http_kit import eventually

TEXT = """
version: 1
listeners: [{http: 8000}]
state: {directory: %s}
upstreams: {a: {url: "oip+http://a:1"}, b: {url: "oip+http://b:1"}}
routes:
  - name: r
    targets: [{upstream: a}, {upstream: b, weight: 0}]
migrations:
  m:
    route: r
    old: a
    new: b
    cutover:
      steps: [5, 100]
      bake: 3s
      min_calls: 10
      %s
      guards: {mismatch: {below: 1%%}, errors: {below: 1%%}}
"""


@dataclass
class Arrived:
    document: dict[str, Any]
    at_s: float


@dataclass
class Keeper:
    """Evidence that the test writes."""

    clock: FakeClock
    evidence: dict[str, Arrived] = field(default_factory=dict)
    resets: list[str] = field(default_factory=list)
    since: float = 0.0
    compared: int = 0

    earlier: dict[str, Any] = field(default_factory=dict)

    def resume_evidence(self, migration: str, earlier: Any) -> None:
        self.earlier[migration] = earlier

    def reset_evidence(self, migration: str) -> None:
        self.resets.append(migration)
        self.since, self.compared = self.clock.now, 0


class Processes:
    """Serving processes, some of which do not reply."""

    def __init__(self, loaded: LoadedConfig, weights: ShiftWeights, count: int = 2) -> None:
        self.shifts = {str(number): ServingShifts(weights, self.trip) for number in range(count)}
        self.routes = [each.of_routes(loaded.config)["r"] for each in self.shifts.values()]
        self.silent: set[str] = set()
        self.trips = 0
        self.written: list[float] = []

    def trip(self) -> None:
        self.trips += 1

    async def exchange_weights(self, weights: ShiftWeights) -> dict[str, Any]:
        return {
            name: None if name in self.silent else each.exchange(weights)
            for name, each in self.shifts.items()
        }

    def calls(self, count: int, code: ErrorCode | None = None, process: int = 0) -> None:
        for _ in range(count):
            self.routes[process].ended("b", code)

    @property
    def shares(self) -> list[float]:
        return [each.share for each in self.routes]


class Leading:
    """The part of a leading process, with cut-overs alone."""

    def __init__(self, controller: CutoverController) -> None:
        self.check_reload = controller.check
        self.change = controller.change


class Leader:
    """A controller whose seconds the test lets pass."""

    def __init__(self, folder: Path, options: str = "", text: str = TEXT) -> None:
        self.loaded = load_text(text % (folder, options))
        self.wall, self.clock = FakeClock(1_790_000_000.0), FakeClock()
        self.controller = CutoverController(
            self.loaded, clock=self.wall, monotonic=self.clock, interval_s=0.001
        )
        self.processes = Processes(self.loaded, self.controller.weights())
        self.keeper = Keeper(self.wall, since=self.wall.now)
        self.controller.start(self.processes, self.keeper)
        # The test makes the decisions.
        task, self.controller._task = self.controller._task, None
        assert task is not None
        task.cancel()

    async def seconds(self, count: int = 1, calls: int = 0, verdict: str = "holds") -> None:
        """Let seconds pass, each with calls to the new target and as many comparisons."""
        for _ in range(count):
            self.wall.advance(1)
            self.clock.advance(1)
            self.keeper.compared += calls
            self.processes.calls(calls)
            self.report(verdict)
            await self.controller._check(self.processes)

    def report(self, verdict: str, **more: Any) -> None:
        guards = [
            {"guard": name, "verdict": verdict, "evidence": "9 of 9"}
            for name in ("mismatch.below", "errors.below")
        ]
        document = {
            "since_us": round(self.keeper.since * 1e6),
            "compared": self.keeper.compared,
            "guards": guards,
            **more,
        }
        self.keeper.evidence["m"] = Arrived(document, self.clock.now)

    async def do(self, verb: str, at_step: int | None = None) -> dict[str, Any]:
        return await self.controller.command("m", verb, at_step)

    @property
    def at(self) -> tuple[str, int, float]:
        document = self.controller.document("m")
        assert document is not None
        return document["state"], document["step"], document["weight"]

    @property
    def on_disk(self) -> dict[str, Any]:
        path = Path(self.loaded.config.state.directory) / "cutover" / "m.json"  # type: ignore[union-attr]
        found: dict[str, Any] = json.loads(path.read_text())["state"]
        return found

    async def restart(self) -> Leader:
        await self.controller.stop()
        return Leader(Path(self.loaded.config.state.directory))  # type: ignore[union-attr]


@pytest.fixture
async def leader(tmp_path: Path) -> Any:
    found = Leader(tmp_path)
    yield found
    await found.controller.stop()


async def test_processes_apply_the_weight_of_each_step(leader: Leader) -> None:
    """All serving processes have the weight of the step, until all calls have moved."""
    await leader.do("start")
    await leader.seconds(5, calls=10)
    assert (("baking", 1, 5.0), [0.05, 0.05]) == (leader.at, leader.processes.shares)
    await leader.seconds(3, calls=500)
    assert (("baking", 2, 100.0), [1.0, 1.0]) == (leader.at, leader.processes.shares)
    await leader.seconds(3, calls=500)
    assert ("done", 2, 100.0) == leader.at
    document = leader.controller.document("m")
    assert document is not None
    assert ["cutover step"] * 3 + ["cutover done"] == [each["event"] for each in document["events"]]
    assert Standing.HOLDS is leader.controller.verdict("m")[0]  # type: ignore[index]


async def test_weights_are_saved_before_they_are_applied(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the epoch of a weight before processes receive it."""
    found = []
    exchange = leader.processes.exchange_weights

    async def look(weights: ShiftWeights) -> dict[str, Any]:
        if weights["m"][1]:
            found.append((weights["m"], (leader.on_disk["weight"], leader.on_disk["epoch"])))
        return await exchange(weights)

    monkeypatch.setattr(leader.processes, "exchange_weights", look)
    await leader.do("start")
    await leader.seconds(12, calls=500)
    await leader.seconds(1, calls=1, verdict="trips")
    assert {0.0, 5.0, 100.0} == {weight for (weight, *_), _ in found}
    assert all(weight[:2] == on_disk for weight, on_disk in found)


async def test_a_full_disk_blocks_steps_but_no_trips(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that cannot be written is not applied; a trip takes effect anyway."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    assert ("baking", 1, 5.0) == leader.at

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.migration.cutover.files.CutoverFiles.save", full)
    with capture_logs() as lines:
        await leader.seconds(5, calls=500)
        assert ("baking", 1, 5.0) == leader.at
        await leader.seconds(1, verdict="trips")
        assert (0.0, [0.0, 0.0]) == (leader.at[2], leader.processes.shares)
    reasons = [line["reason"] for line in lines if line["event"] == "cutover state not written"]
    assert "No space left on device" in reasons[0]


async def test_a_trip_in_one_process_applies_to_all_processes(leader: Leader) -> None:
    """The process has weight 0 at once, the others with the leader's next decision."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    with capture_logs() as lines:
        leader.processes.calls(4, ErrorCode.UNAVAILABLE, process=1)
        assert ([0.05, 0.0], 1) == (leader.processes.shares, leader.processes.trips)
        await leader.seconds()
    assert [0.0, 0.0] == leader.processes.shares
    await leader.seconds()
    assert ("rolled_back", 1, 0.0) == leader.at
    document = leader.controller.document("m")
    assert document is not None
    assert "errors.below tripped: 4 of the last 4 calls, limit 1.000%" == document["reason"]
    assert {"error"} == {
        line["log_level"] for line in lines if line["event"] == "cutover tripped" and "step" in line
    }
    assert Standing.TRIPS is leader.controller.verdict("m")[0]  # type: ignore[index]


@pytest.mark.parametrize("good", [0, 100_000])
async def test_failures_of_all_processes_are_counted_together(leader: Leader, good: int) -> None:
    """Two failures trip no single process; the leader counts four and trips."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    await leader.do("pause")
    for process in (0, 1):
        leader.processes.calls(good // 2, process=process)
    await leader.seconds()
    for process in (0, 1):
        leader.processes.calls(2, ErrorCode.UNAVAILABLE, process)
    assert [0.05, 0.05] == leader.processes.shares
    await leader.seconds()
    assert [0.0, 0.0] == leader.processes.shares
    await leader.seconds()
    assert ("rolled_back", 1, 0.0) == leader.at


async def test_a_rollback_waits_for_silent_processes(leader: Leader) -> None:
    """The rollback is complete when every process has weight 0."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    leader.processes.silent = {"1"}
    await leader.do("rollback")
    await leader.seconds(3)
    assert (("rolling_back", 1, 0.0), [0.0, 0.05]) == (leader.at, leader.processes.shares)
    leader.processes.silent = set()
    await leader.seconds()
    assert (("rolled_back", 1, 0.0), [0.0, 0.0]) == (leader.at, leader.processes.shares)


async def test_evidence_of_an_earlier_attempt_is_ignored(leader: Leader) -> None:
    """Comparisons report the old trip until they are reset; the new attempt ignores it."""
    await leader.do("start")
    await leader.seconds(1, verdict="trips")
    await leader.seconds()
    await leader.do("resume")
    leader.wall.advance(1)
    leader.clock.advance(1)
    leader.report("trips", since_us=1)
    await leader.controller._check(leader.processes)
    assert (("mirroring", 0, 0.0), ["m"]) == (leader.at, leader.keeper.resets)
    await leader.seconds(1, verdict="trips")
    assert "rolling_back" == leader.at[0]


async def test_a_model_change_resets_the_evidence(leader: Leader) -> None:
    """The share stays; the comparisons of the earlier model are discarded."""
    await leader.do("start")
    for versions in (["1"], ["1"], ["2"]):
        await leader.seconds(2, calls=500)
        leader.wall.advance(1)
        leader.clock.advance(1)
        leader.report("holds", models={"m": {"new": {"versions": versions, "signature": "1f"}}})
        assert [] == leader.keeper.resets
        await leader.controller._check(leader.processes)
    assert ("baking", 2, 100.0) == leader.at
    await leader.seconds()
    assert ["m"] == leader.keeper.resets
    document = leader.controller.document("m")
    assert document is not None
    assert "a model changed its version or signature" in document["events"][-1]["text"]


async def test_stale_evidence_leaves_guards_undecided(leader: Leader) -> None:
    """Guards are undecided while no process reports comparisons."""
    await leader.do("start")
    await leader.seconds(1, calls=500)
    leader.clock.advance(6)
    for _ in range(20):
        leader.clock.advance(1)
        leader.wall.advance(1)
        await leader.controller._check(leader.processes)
    assert ("mirroring", 0, 0.0) == leader.at
    standing, document = leader.controller.verdict("m")  # type: ignore[misc]
    assert (Standing.UNDECIDED, "undecided") == (standing, document["verdict"])


@pytest.mark.parametrize("seconds", range(0, 14, 2))
async def test_a_restart_continues_with_step_and_weight(leader: Leader, seconds: int) -> None:
    """The new processes begin with the weights of the state, before the first decision."""
    await leader.do("start")
    await leader.seconds(seconds, calls=500)
    at, shares = leader.at, leader.processes.shares
    again = await leader.restart()
    try:
        assert (at, shares) == (again.at, again.processes.shares)
    finally:
        await again.controller.stop()


async def test_a_restart_resumes_the_evidence(leader: Leader) -> None:
    """The guards of the comparisons keep their counts, unless the evidence was reset."""
    await leader.do("start")
    counts = {"since_us": 5, "guards": {"mismatch.below": [900, 1, 0.5]}}
    leader.wall.advance(1)
    leader.report("undecided", resume=counts)
    await leader.controller._check(leader.processes)
    again = await leader.restart()
    assert {"m": counts} == again.keeper.earlier
    again.report("trips")
    await again.controller._check(again.processes)
    await again.controller._check(again.processes)
    await again.do("resume")
    last = await again.restart()
    assert {} == last.keeper.earlier
    await last.controller.stop()


async def test_a_damaged_state_pauses_at_weight_0(leader: Leader, tmp_path: Path) -> None:
    """An error is logged, and the damaged file is kept."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    await leader.controller.stop()
    path = tmp_path / "cutover" / "m.json"
    path.write_bytes(path.read_bytes()[:50])
    with capture_logs() as lines:
        again = Leader(tmp_path)
    assert (("paused", 0, 0.0), [0.0, 0.0]) == (again.at, again.processes.shares)
    (line,) = [line for line in lines if line["event"] == "cutover state unusable"]
    assert ("error", True) == (line["log_level"], "is damaged" in line["text"])
    assert 50 == path.with_suffix(".json.unusable").stat().st_size
    await again.seconds(20, calls=500)
    assert ("paused", 0, 0.0) == again.at
    await again.do("resume")
    await again.seconds(5, calls=500)
    assert ("baking", 1, 5.0) == again.at
    await again.controller.stop()


async def test_a_changed_plan_pauses_a_running_cutover_at_weight_0(
    leader: Leader, tmp_path: Path
) -> None:
    """A restart with other steps sends no calls to the new target until a reset."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    await leader.controller.stop()
    other = TEXT.replace("[5, 100]", "[50, 100]")
    again = Leader(tmp_path, text=other)
    assert (("paused", 0, 0.0), [0.0, 0.0]) == (again.at, again.processes.shares)
    document = again.controller.document("m")
    assert document is not None
    assert "is of another plan" in document["reason"]
    await again.do("reset")
    await again.controller.stop()
    last = Leader(tmp_path)
    assert ("ready", 0, 0.0) == last.at
    await last.controller.stop()


CHANGED_PLANS = {
    "another URL of the old target": ("http://a:1", "http://a:2", ("done", 2, 100.0)),
    "another URL of the new target": ("http://b:1", "http://b:2", ("done", 2, 100.0)),
    "more steps": ("[5, 100]", "[5, 25, 100]", ("done", 3, 100.0)),
    "a guard": ("below: 1%%}, errors", "below: 2%%}, errors", ("done", 2, 100.0)),
    "another new target": ("new: b", "new: c", ("ready", 0, 0.0)),
}


@pytest.mark.parametrize("case", CHANGED_PLANS)
async def test_a_changed_plan_leaves_a_cutover_that_is_done(
    leader: Leader, tmp_path: Path, case: str
) -> None:
    """After a restart all calls still go to the new target, unless it is another one."""
    before, after, expected = CHANGED_PLANS[case]
    await leader.do("start")
    await leader.seconds(12, calls=500)
    assert ("done", 2, 100.0) == leader.at
    await leader.controller.stop()
    text = TEXT.replace(before, after)
    if "new: c" in text:
        text = text.replace("{upstream: b, weight: 0}", "{upstream: b, weight: 0, model: c}")
        text = text.replace("new: c", "new: b/c")
    assert text != TEXT
    for _ in range(2):  # the state is then one of the other plan
        again = Leader(tmp_path, text=text)
        assert (expected, [expected[2] / 100] * 2) == (again.at, again.processes.shares)
        await again.seconds(2)
        assert expected == again.at
        await again.controller.stop()


async def test_a_reload_cannot_change_a_plan_that_is_done(leader: Leader, tmp_path: Path) -> None:
    """The error does not advise to move all clients back."""
    await leader.do("start")
    await leader.seconds(12, calls=500)
    other = load_text(TEXT.replace("[5, 100]", "[50, 100]") % (tmp_path, ""))
    with pytest.raises(ConfigError, match="expected no 'cutover' any more, the weights") as caught:
        leader.controller.check(other)
    assert "rollback" not in str(caught.value)


async def test_a_reload_cannot_change_the_plan_of_a_running_cutover(
    leader: Leader, tmp_path: Path
) -> None:
    """A plan may change before and after the cut-over only."""
    other = load_text(TEXT.replace("[5, 100]", "[50, 100]") % (tmp_path, ""))
    leader.controller.check(other)
    await leader.do("start")
    for changed in (other, load_text(TEXT.partition("migrations:")[0] % tmp_path)):
        with pytest.raises(ConfigError, match="the cut-over of 'm' is mirroring: its plan cannot"):
            leader.controller.check(changed)
    leader.controller.check(leader.loaded)
    await leader.do("rollback")
    await leader.seconds()
    leader.controller.check(other)
    await leader.controller.change(other)
    assert ("ready", 0, 0.0) == leader.at
    assert [50.0, 100.0] == leader.controller.document("m")["steps"]  # type: ignore[index]


async def test_the_reloader_checks_cutovers_before_it_applies(
    leader: Leader, tmp_path: Path
) -> None:
    """A changed upstream is rejected while the cut-over runs, and applied afterwards."""
    other = load_text(TEXT.replace("b:1", "b:2") % (tmp_path, ""))
    applied: list[LoadedConfig] = []

    async def apply(loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        applied.append(loaded)
        return {}

    leading = cast("LeadingParts", Leading(leader.controller))
    reloader = Reloader(lambda: other, leader.loaded, apply, leading=leading)
    await leader.do("start")
    result = await reloader.reload()
    assert ("rejected", []) == (result.outcome, applied)
    assert "the cut-over of 'm' is mirroring" in result.error
    await leader.do("rollback")
    await leader.seconds()
    assert "applied" == (await reloader.reload()).outcome
    assert [other] == applied
    assert ("ready", 0, 0.0) == leader.at


async def test_a_second_gateway_follows_the_first_one(leader: Leader, tmp_path: Path) -> None:
    """It applies the same weights, rejects commands, and leads when the first one ends."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    second = Leader(tmp_path)
    assert (("baking", 1, 5.0), [0.05, 0.05]) == (second.at, second.processes.shares)
    with pytest.raises(CommandRefused, match="another gateway leads the cut-over of 'm'"):
        await second.do("rollback")
    await leader.do("pause")
    await second.seconds(10, calls=500)
    assert ("paused", 1, 5.0) == second.at
    await leader.do("rollback")
    await second.seconds()
    assert [0.0, 0.0] == second.processes.shares
    await leader.controller.stop()
    await second.seconds(2)
    assert "rolled_back" == second.at[0]
    await second.do("resume")
    assert "mirroring" == second.at[0]
    await second.controller.stop()


async def test_wake_triggers_a_decision_at_once(tmp_path: Path) -> None:
    """A trip of a process does not wait for the next second."""
    leader = Leader(tmp_path)
    controller = leader.controller
    controller._interval_s = 3600
    controller.start(leader.processes, leader.keeper)
    await controller.command("m", "start")
    for _ in range(2):
        leader.wall.advance(1)
        leader.report("trips")
        controller.wake()
        await eventually(lambda: leader.at[0] != "mirroring")
    await controller.stop()
    assert leader.at[0] in {"rolling_back", "rolled_back"}


async def test_invalid_commands_are_rejected(leader: Leader) -> None:
    """The migration is unknown, or its state does not allow the command."""
    with pytest.raises(LookupError, match="no cut-over of 'x'; expected one of m"):
        await leader.controller.command("x", "start")
    with pytest.raises(CommandRefused, match="is ready, and 'pause' expects"):
        await leader.do("pause")
    assert leader.controller.document("x") is None
    assert leader.controller.verdict("x") is None


async def test_the_reason_of_a_rollback_has_the_reasons_of_failures(leader: Leader) -> None:
    """The reason has the most frequent error of the new server, and the document some more."""
    await leader.do("start")
    reasons: list[dict[str, Any]] = [
        {"outcome": "failed_alike", "code": "not_found", "count": 9, "example": "x", "call": "a"},
        {"outcome": "structure", "code": None, "count": 8, "example": "shape", "call": "b"},
        {"outcome": "new_error", "code": "internal", "count": 7, "example": "no GPU", "call": "c"},
    ]
    leader.report("trips", reasons=reasons)
    leader.wall.advance(1)
    await leader.controller._check(leader.processes)
    document = leader.controller.document("m")
    assert document is not None
    assert (
        document["reason"]
        == "mismatch.below tripped: 9 of 9"  # of replies: no error is a cause of it
    )
    assert reasons == document["reasons"]
    assert "7 new_error internal: no GPU (call c)" in list(cutover_lines(document))
    assert "internal: no GPU" == most_frequent(reasons)


def test_the_status_counts_mismatches_that_no_guard_limits() -> None:
    """With a guard, its line has the count."""
    outcomes = {"match": 1, "mismatch": 1_870, "structure": 1}
    replies = replies_of({"outcomes": outcomes, "replies_compared": 1_872})
    document: dict[str, Any] = {
        "state": "done",
        "weight": 100,
        "new": "b",
        "steps": [100],
        "reason": "",
        "next": "",
        "guards": [],
        "replies": replies,
    }
    expected = "no guard watches replies: 1871 of 1872 compared replies differ"
    assert expected in list(cutover_lines(document))
    guard = {"guard": "mismatch.below", "verdict": "holds", "evidence": "3 of 20000"}
    lines = list(cutover_lines({**document, "guards": [guard]}))
    assert expected not in lines
    assert any("3 of 20000" in line for line in lines)


async def test_metrics_show_step_weight_state_and_guards(leader: Leader) -> None:
    """The current state is 1; guards are 1, 0 or -1; rollbacks are counted by cause."""
    await leader.do("start")
    await leader.seconds(5, calls=500)
    await leader.seconds(1, verdict="undecided")

    def samples() -> Iterator[tuple[str, float]]:
        for family in leader.controller.collect():
            for sample in family.samples:
                labels = [value for key, value in sample.labels.items() if key != "migration"]
                yield (
                    " ".join([sample.name.removeprefix("gateway_cutover_"), *labels]),
                    sample.value,
                )

    found = dict(samples())
    assert {
        "step": 1.0,
        "weight": 5.0,
        "state baking": 1.0,
        "state done": 0.0,
        "guard mismatch.below": 0.0,
        "guard errors.clients": 0.0,
    }.items() <= found.items()
    await leader.seconds(1, verdict="trips")
    assert 1.0 == dict(samples())["rollbacks_total mismatch.below"]
    await leader.seconds()
    await leader.do("resume")
    await leader.do("rollback")
    assert 1.0 == dict(samples())["rollbacks_total operator"]


async def test_runtime_changes_cannot_set_the_weight_of_a_cutover(leader: Leader) -> None:
    """`gateway route weights` cannot bypass the guards."""
    with pytest.raises(ValueError, match="the cut-over of migration 'm' moves calls to 'b'"):
        RuntimeChanges().with_weights(leader.loaded.config, "r", {"b": 5}).check(leader.loaded)
    RuntimeChanges().with_weights(leader.loaded.config, "r", {"a": 5}).check(leader.loaded)


@pytest.fixture
async def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three gateways that share a directory; the first one leads."""
    names = iter("abc")
    monkeypatch.setattr("gateway.migration.cutover.controller.own_name", lambda: next(names))
    shared = f"coordinate: file\n      directory: {tmp_path / 'shared'}"
    found = [Leader(tmp_path / name, shared) for name in "abc"]
    yield found
    for each in found:
        await each.controller.stop()


async def second(replicas: list[Leader], calls: int = 0, verdicts: str = "hhh") -> None:
    """Let a second pass at all gateways, the followers first."""
    names = {"h": "holds", "t": "trips", "u": "undecided"}
    for each, verdict in list(zip(replicas, verdicts, strict=True))[::-1]:
        await each.seconds(1, calls, names[verdict])


async def start_and_pause(replicas: list[Leader]) -> None:
    await second(replicas)
    await replicas[0].do("start")
    for _ in range(20):
        await second(replicas, calls=100)
        if replicas[0].at[1]:
            break
    await replicas[0].do("pause")
    await second(replicas)


async def test_replicas_share_one_weight(replicas: list[Leader]) -> None:
    """The leader counts the calls of all replicas; the others follow within a second."""
    await start_and_pause(replicas)
    assert [("paused", 1, 5.0)] * 3 == [each.at for each in replicas]
    assert [[0.05, 0.05]] * 3 == [each.processes.shares for each in replicas]
    before = replicas[0].controller.document("m")["calls"]["found"]  # type: ignore[index]
    await second(replicas, calls=10)
    after = replicas[0].controller.document("m")["calls"]["found"]  # type: ignore[index]
    assert before + 30 == after


async def test_guards_must_hold_at_all_replicas(replicas: list[Leader]) -> None:
    """An undecided or silent replica keeps the step."""
    await start_and_pause(replicas)
    await replicas[0].do("resume")
    for _ in range(10):
        await second(replicas, calls=100, verdicts="hhu")
    assert ("baking", 1, 5.0) == replicas[0].at
    for _ in range(2):
        await second(replicas, calls=500)
    assert ("baking", 2, 100.0) == replicas[0].at


@pytest.mark.parametrize("cause", ["comparisons", "clients", "clients of all"])
async def test_a_trip_at_one_replica_applies_to_all_replicas(
    replicas: list[Leader], cause: str
) -> None:
    """After two seconds all replicas have weight 0, although another one leads."""
    await start_and_pause(replicas)
    if cause == "clients":
        replicas[2].processes.calls(4, ErrorCode.UNAVAILABLE)
        assert [0.0, 0.05] == replicas[2].processes.shares
    elif cause == "clients of all":
        for each in replicas:
            each.processes.calls(2, ErrorCode.UNAVAILABLE)
        assert [[0.05, 0.05]] * 3 == [each.processes.shares for each in replicas]
    await second(replicas, verdicts="hht" if cause == "comparisons" else "hhh")
    await second(replicas)
    assert [[0.0, 0.0]] * 3 == [each.processes.shares for each in replicas]
    for _ in range(2):
        await second(replicas)
    assert ["rolled_back"] * 3 == [each.at[0] for each in replicas]


async def test_another_replica_leads_when_the_leader_stops(replicas: list[Leader]) -> None:
    """It continues at the same step, with newer weights than those of the first leader."""
    await start_and_pause(replicas)
    await replicas[0].controller.stop()
    rest = replicas[1:]
    await second(rest, verdicts="hh")
    leads = [each.controller.document("m")["leads"] for each in rest]  # type: ignore[index]
    assert 1 == leads.count(True)
    leader = rest[leads.index(True)]
    assert ("paused", 1, 5.0) == leader.at
    await leader.do("rollback")
    await second(rest, verdicts="hh")
    assert [[0.0, 0.0]] * 2 == [each.processes.shares for each in rest]


async def test_a_rollback_waits_fifteen_seconds_for_a_lost_replica(replicas: list[Leader]) -> None:
    """Afterwards the rollback completes without the replica."""
    await start_and_pause(replicas)
    replicas[0].wall.advance(1)
    await replicas[0].do("rollback")
    for _ in range(3):
        await replicas[0].seconds()
    assert "rolling_back" == replicas[0].at[0]
    for _ in range(15):
        await replicas[0].seconds()
    assert "rolled_back" == replicas[0].at[0]


def test_damaged_and_old_replica_files_are_ignored(tmp_path: Path) -> None:
    """Damaged files are skipped, old ones removed; `remove` deletes the own file."""
    clock = FakeClock(1_790_000_000.0)
    first, other = (Replicas(tmp_path, "m", name, clock) for name in "ab")
    assert [] == list(first.others())
    other.write({"reports": {}})
    folder = tmp_path / "m.replicas"
    (folder / "c.json").write_bytes(b"{")
    (folder / "d.json").write_bytes(b"[]")
    assert ["b"] == [name for name, _ in first.others()]
    clock.advance(16)
    assert [] == list(first.others())
    assert (folder / "b.json").exists()
    clock.advance(3600)
    assert [] == list(first.others())
    assert not (folder / "b.json").exists()
    first.write({})
    first.remove()
    first.remove()
    assert not (folder / "a.json").exists()
