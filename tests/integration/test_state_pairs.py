"""Each feature with state, in each happening that crosses processes: no count is lost, and none is made twice.

`PAIRS` is the list. A trial runs whole gateways with all features at once, makes calls before,
during and after its happening, and the pairs of it count what each feature has.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.access.key_file import KeyFile, load_key_file, save_key_file
from gateway.migration.callers.inventory import merged_rows
from gateway.migration.captures.capture import Capture
from tests.integration import workers_kit
from tests.integration.access_kit import NOW
from tests.integration.cli_kit import Running, free_port, gateway, get, serving
from tests.integration.migration.cutover_kit import UNCOMPARED, migrating, two_servers
from tests.integration.workers_kit import BODY, PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.flaky(reruns=0)]

HERE = Path(__file__).parent
START_S, LIMIT = 120.0, 60
FREE = 20  # calls of a gateway without quotas
OWN = ("simple", "x", "y", "z")
# Names of clients, and their keys.
KEYS = {name: f"tg_{name:x<40}" for name in ("first", "other", "revoked")}
LATE_S = 2.0  # what a busy machine adds to a documented time

SERVER = """
version: 1
listeners: [{name: a, grpc: "127.0.0.1:0"}, {name: b, grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
models:
  total: {backend: python, options: {callable: "gateway.backends.examples:SequenceSum"}}
lifecycle: {pre_stop: 0s}
"""


class Tried(NamedTuple):
    """A pair that a trial counts: the sentence that bounds it, and the last seconds that it may lose."""

    bound: str
    lost_s: float = 0.0


class Shown(NamedTuple):
    """A pair that another test shows: its file and its name, without `test_`."""

    file: str
    test: str


class Never(NamedTuple):
    """A pair that cannot occur, and why."""

    reason: str


Cell = Tried | Shown | Never

# fmt: off
HAPPENINGS = (
    "hand-over", "hand-over to two workers", "reload", "worker killed", "gateway killed",
    "restart", "one directory for two",
)
# fmt: on

# What bounds a count, with the page that says so.
BOTH_SPEND = Tried(
    "upgrade.md: Both spend one budget (quotas.db), and the next one goes on with it."
)
ALONE = Tried("upgrade.md: Another gateway does not start while one counts quotas in the directory")
EXACT = Tried("security.md: Workers never exceed a quota, also when one is killed.")
SECOND = Tried("upgrade.md: A gateway that is killed loses the counts of its last second.", 1.0)
STAYS = Tried("configuration.md: Files that the gateway keeps across restarts.")
KEPT = Tried("upgrade.md: | after a reload |")
BOTH_ADD = Tried("upgrade.md: Both add to one file for each worker.")
TEN_S = Tried("migration.md: Counts are at most 10 s old", 10.0)
SEGMENTS = Tried("upgrade.md: Segments have names of their own; a lock guards the list")
MOMENT = Tried("migration.md: loses at most the calls of its last 0.25 s", 0.25)
SENDS = Tried("upgrade.md: Each sends its own before it stops; nothing is on disk.")
DIED = Tried("how-to/events.md: the worker or the shadow process died before the event", 1.0)
UNSENT = Tried("upgrade.md: Each sends its own before it stops; nothing is on disk.", 600.0)
LOG = Tried("upgrade.md: Both append.")
LINES = Tried("upgrade.md: A process that is killed loses the lines of its last 0.2 s.", 0.2)
AT_ONCE = Tried("security.md: it has a line before its response.")
FILES = Tried("upgrade.md: Both read them; no gateway writes them.")
IDS = Tried("security.md: sequences belong to the client that began them.")
PINS = Tried("how-to/residency.md: keeps it, until unpin or a restart.")
DRAINED = Tried("upgrade.md: all workers have them")

# Why a pair cannot occur.
ENDS = Never("a change at run time ends with its process (docs/upgrade.md)")
EMPTY = Never("each process begins empty (docs/scale-out.md)")
READ = Never("no gateway writes the files; each process reads them at its start")
SHADOW = Never("the shadow process has it, and goes on")
ONE = Never("it needs 'workers: 1'")
NO_FILE = Never("nothing is in the directory")

# What other tests show.
STORES = Shown("quota_store", "two_gateways_of_two_workers_share_a_budget")
MOVES = Shown("quota_store", "a_reload_adds_and_removes_the_store")
TAKEN = Shown("quota_store", "what_a_killed_gateway_held_comes_back")
RETURNED = Shown("quota_store", "leases_go_back_at_a_stop")
NEXT_LEADS = Shown("state_pairs", "the_next_gateway_continues_a_cutover")
WEIGHTS = Shown("migration/cutover", "new_and_resumed_workers_get_the_current_weight")
NO_MOVE = Shown("migration/cutover_states", "stopped_and_killed_processes_move_no_call")
STEP = Shown("migration/cutover", "restart_after_a_kill_continues_at_the_step")
GUARDS = Shown("migration/cutover", "restart_after_a_kill_restores_all_guards")
LEADER = Shown("migration/cutover", "stopped_leader_keeps_weights_and_guards")
SHARED = Shown("migration/cutover", "two_gateways_share_a_cutover")
ONE_SHADOW = Shown("migration/mirror_faults", "workers_share_one_shadow_process")
KEY_SET = Shown("access_tokens", "a_key_set_in_a_file_is_watched")
TLS = Shown("certificates", "a_reload_names_broken_files_and_replaced_ones")
TLS_WORKERS = Shown("certificates", "all_workers_use_renewed_files")
TOKENS = Shown("../unit/app/admin/roles", "a_reload_changes_tokens_and_roles")
OBJECTS = Shown("../unit/app/gateway_reload", "a_reload_keeps_unchanged_objects")
OFFLINE = Shown("../unit/app/gateway_reload", "offline_state_survives_a_reload")
COUNTS = Shown("../unit/telemetry/aggregation", "counts_of_ended_processes_are_kept")
NO_CALL = Shown("hand_over", "hand_over_loses_no_call")
IN_USE = Shown("hand_over", "without_hand_over_the_ports_stay_in_use")
RELOADS = Shown("reload", "calls_and_streams_survive_reloads")
OWN_CALLS = Shown("workers", "killed_worker_loses_only_its_own_calls")
STALE = Shown("stream_server", "stale_socket_file_is_replaced")
ACTIVATED = Shown("service_manager", "connections_made_before_the_start_are_served")

# fmt: off
PAIRS: dict[str, tuple[Cell, ...]] = {
    "quotas": (BOTH_SPEND, BOTH_SPEND, KEPT, EXACT, SECOND, STAYS, ALONE),
    "quotas in a store": (STORES, STORES, MOVES, TAKEN, TAKEN, RETURNED, NO_FILE),
    "stock": (BOTH_ADD, BOTH_ADD, KEPT, TEN_S, TEN_S, STAYS, BOTH_ADD),
    "captures": (SEGMENTS, SEGMENTS, KEPT, MOMENT, MOMENT, SEGMENTS, SEGMENTS),
    "events": (SENDS, SENDS, KEPT, DIED, UNSENT, SENDS, SENDS),
    "cut-over": (NEXT_LEADS, WEIGHTS, NO_MOVE, WEIGHTS, STEP, LEADER, SHARED),
    "evidence of mirrors": (GUARDS, ONE_SHADOW, SHADOW, SHADOW, GUARDS, GUARDS, SHARED),
    "access log": (LOG, LOG, KEPT, LINES, LINES, LOG, LOG),
    "audit log": (LOG, LOG, KEPT, AT_ONCE, AT_ONCE, LOG, LOG),
    "keys of clients": (FILES, FILES, FILES, FILES, FILES, FILES, FILES),
    "key sets of issuers": (READ, READ, KEY_SET, READ, READ, READ, READ),
    "TLS files": (READ, READ, TLS, TLS_WORKERS, READ, READ, READ),
    "tokens of the admin port": (READ, READ, TOKENS, READ, READ, READ, READ),
    "sequences": (IDS, IDS, IDS, IDS, IDS, IDS, IDS),
    "pinned models": (ENDS, ENDS, PINS, PINS, ENDS, ENDS, ENDS),
    "drained endpoints": (ENDS, ENDS, DRAINED, DRAINED, ENDS, ENDS, ENDS),
    "loads of the repository": (ENDS, ENDS, OBJECTS, ONE, ENDS, ENDS, ENDS),
    "readiness set by clients": (ENDS, ENDS, OFFLINE, ONE, ENDS, ENDS, ENDS),
    "cache of responses": (EMPTY, EMPTY, OBJECTS, EMPTY, EMPTY, EMPTY, EMPTY),
    "ejections and breakers": (EMPTY, EMPTY, OBJECTS, EMPTY, EMPTY, EMPTY, EMPTY),
    "metrics and their series": (ENDS, ENDS, KEPT, COUNTS, ENDS, ENDS, ENDS),
    "sockets": (NO_CALL, NO_CALL, RELOADS, OWN_CALLS, STALE, ACTIVATED, IN_USE),
}
# fmt: on
TRIED = [
    (happening, feature)
    for number, happening in enumerate(HAPPENINGS)
    for feature, cells in PAIRS.items()
    if isinstance(cells[number], Tried)
]


def config(folder: Path, servers: dict[str, str], workers: int, *, hand_over: bool) -> Path:
    """Write a configuration with all features; return its path."""
    urls = [f"oip+grpc://{address}" for address in servers.values()]
    simple = {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
    sink = {"url": f"file://{folder}/events", "payload": "none", "format": "jsonl"}
    document = {
        "version": 1,
        "workers": workers,
        "listeners": [{"http": f"127.0.0.1:{free_port()}"}],
        "admin": {"address": f"127.0.0.1:{free_port()}", "metrics": None, "audit": "a.log"},
        "security": {"keys": {"file": "keys.yaml"}},
        "upstreams": {"pair": {"urls": urls}, "drained": {"urls": urls}},
        "models": dict.fromkeys(OWN, simple),
        "residency": {"models": 2},
        "routes": [
            *({"match": {"model": name}, "targets": [{"model": name}]} for name in OWN),
            {"match": {"model": "total"}, "targets": [{"upstream": "pair"}]},
            {"match": {"model": "far"}, "targets": [{"upstream": "drained", "model": "total"}]},
        ],
        "quotas": {"q": {"limit": f"{LIMIT}/day", "by": "none", "match": {"models": ["simple"]}}},
        "state": {"directory": "state"},
        "stock": {},
        "capture": {"directory": "capture"},
        "events": {"sink": {**sink, "models": ["simple"]}},
        "telemetry": {"log": {"access": {"path": "access.log"}}},
        "lifecycle": {"pre_stop": "200ms", "drain": "5s", "hand_over": hand_over},
    }
    (folder / "gateway.yaml").write_text(json.dumps(document))
    return folder / "gateway.yaml"


class Trial:
    """A gateway with all features, the calls of its clients, and what happens to it.

    Attributes:
        answered: When each call of the model `simple` had its response, and its status.
        lost: Calls that got none, because a process was killed or none listened.
    """

    def __init__(self, folder: Path, stack: ExitStack, server: Running, happening: str) -> None:
        self.folder, self._stack = folder, stack
        self.servers = {name: server.addresses[f"{name}.grpc"] for name in "ab"}
        keys = KeyFile.new()
        for name, key in KEYS.items():
            keys = keys.added(name, key, NOW)
        save_key_file(folder / "keys.yaml", keys)
        self.keeps_pins = happening in {"reload", "worker killed"}
        hand_over, workers = happening.startswith("hand-over"), 2 if self.keeps_pins else 1
        self.path = config(folder, self.servers, workers, hand_over=hand_over)
        self.answered: list[tuple[float, int]] = []
        self.lost = self.changes = self.others = 0
        self.killed_at = 0.0
        self.sums: list[Any] = []
        self.running = self.start()
        self._over = threading.Event()
        self._make_calls(20)
        self._prepare()
        self._thread = threading.Thread(target=self._call_until_over)
        self._thread.start()
        try:
            self._make_happen(happening)
        finally:
            self._over.set()
            self._thread.join(PATIENCE_S)
        self._make_calls(20)
        while 429 not in (status for _, status in self.answered):
            self._make_calls(5)
        self._look()

    def start(self) -> Running:
        """Start a gateway with the file."""
        return self._stack.enter_context(serving(str(self.path), patience_s=START_S))

    def call(
        self, model: str, client: str = "first", body: str = BODY, verb: str = "infer"
    ) -> tuple[int, Any]:
        """Make a call on a connection of its own; return status and document."""
        with closing(workers_kit.connect(self.running)) as connection:
            headers = {"x-api-key": KEYS[client]}
            connection.request("POST", f"/v2/models/{model}/{verb}", body, headers)
            response = connection.getresponse()
            self.others += model != "simple" and response.status != 401
            return response.status, json.loads(response.read())

    def _make_calls(self, count: int) -> None:
        for _ in range(count):
            status = self.call("simple")[0]
            self.answered.append((time.monotonic(), status))

    def _call_until_over(self) -> None:
        while not self._over.wait(0.02):
            try:
                self._make_calls(1)
            except (OSError, HTTPException):
                self.lost += 1

    def _add(self, value: int, **flags: bool) -> None:
        """Send each client's request of its sequence 7; keep the sums."""
        for client, factor in (("first", 1), ("other", 10)):
            body = json.dumps({"INPUT": value * factor, "sequence_id": 7, **flags})
            _, document = self.call("total", client, body, "generate")
            self.sums.append(document.get("OUTPUT", document))

    def change(self, *words: str) -> None:
        """Change the gateway by a command of an operator, which the audit log has."""
        self.changes += 1
        done = gateway(*words, "--admin", self.running.addresses["admin"])
        assert 0 == done.returncode, done.stderr

    def _prepare(self) -> None:
        """Have something of each feature."""
        self._add(1, sequence_start=True)
        self.change("upstream", "drain", f"drained/{self.servers['a']}")
        self.change("residency", "pin", "x")
        keys = self.folder / "keys.yaml"
        save_key_file(keys, load_key_file(keys).revoked("k3", NOW))
        eventually(lambda: {401} == {self.call("y", "revoked")[0] for _ in range(8)})

    def _make_happen(self, happening: str) -> None:
        former = self.running
        if happening.startswith("hand-over"):
            if happening.endswith("two workers"):
                text = self.path.read_text()
                self.path.write_text(text.replace('"workers": 1', '"workers": 2'))
            self.running = self.start()
            assert 0 == former.stop()
        elif happening == "reload":
            self.path.write_text(self.path.read_text().replace('{"models": 2}', '{"models": 3}'))
            self.change("reload")
            self.changes += 1
            former.process.send_signal(signal.SIGHUP)
            eventually(lambda: 2 == len(workers_kit.events(former, "configuration reloaded")))
        elif happening == "worker killed":
            pid = workers_kit.pids(former)[1]
            self.killed_at = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: workers_kit.pids(former)[1] != pid)
        elif happening == "one directory for two":
            self._share_directory()
        else:
            self.killed_at = time.monotonic() if happening == "gateway killed" else 0.0
            former.stop(signal.SIGKILL if self.killed_at else signal.SIGTERM)
            self.running = self.start()

    def _share_directory(self) -> None:
        """Start a second gateway: with quotas it is refused; without them both make calls."""
        document = json.loads(self.path.read_text())
        document["listeners"] = [{"http": "127.0.0.1:0"}]
        document["admin"]["address"] = "127.0.0.1:0"
        self.path.write_text(json.dumps(document))
        assert "another gateway counts in" in gateway("serve", str(self.path)).stderr
        del document["quotas"]
        self.path.write_text(json.dumps(document))
        self._over.set()
        self._thread.join(PATIENCE_S)
        former, self.running = self.running, self.start()
        self._make_calls(FREE)
        assert 0 == self.running.stop()
        self.running = former

    def _look(self) -> None:
        """Keep what a running gateway shows, and stop it."""
        self._add(2)
        self.revoked = {self.call("y", "revoked")[0] for _ in range(8)}
        for number in range(100, 112):
            body = {"INPUT": 1, "sequence_id": number, "sequence_start": True, "sequence_end": True}
            self.call("far", body=json.dumps(body), verb="generate")
        for name in "yzyz":  # a model that is not pinned makes room
            self.call(name)
        self.requests = workers_kit.calls(self.running)
        with suppress(AssertionError):  # a process pins again what it has not loaded yet
            eventually(lambda: {"x"} == self._pinned(), 5.0 if self.keeps_pins else 0.0)
        self.pinned = self._pinned()
        assert 0 == self.running.stop()
        self.endpoints = {line["endpoint"] for line in self.lines("far")}

    def _pinned(self) -> set[str]:
        document = get(self.running.url("/api/v1/residency", "admin"))[1]
        (endpoint,) = document["upstreams"]["gateway"]
        return {each["name"] for each in endpoint["models"] if each["pinned"]}

    def late(self, lost_s: float) -> int:
        """Return the calls of the last seconds before the kill, and what a busy machine adds."""
        if not lost_s or not self.killed_at:
            return 0
        begin = self.killed_at - lost_s - LATE_S
        return sum(begin < at <= self.killed_at for at, _ in self.answered)

    def lines(self, model: str) -> list[dict[str, Any]]:
        """Return the lines of the access log about a model."""
        lines = map(json.loads, (self.folder / "access.log").read_text().splitlines())
        return [line for line in lines if line.get("model") == model]

    def ids(self, feature: str) -> list[str]:
        """Return the ids of the calls that a feature has, in no order."""
        if feature == "access log":
            return [line["request_id"] for line in self.lines("simple")]
        if feature == "events":
            files = (self.folder / "events").rglob("*.jsonl")
            events = [json.loads(line) for path in files for line in path.read_text().splitlines()]
            return [each["id"] for each in events if each["reqType"].endswith(".request")]
        found = Capture(self.folder / "capture")
        assert [] == found.verify()[1]
        return [each.call.request_id for each in found.calls() if each.call.model == "simple"]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Trial]]:
    """Return what runs the trial of a happening, once."""
    with ExitStack() as stack:

        @cache
        def trial(happening: str) -> Trial:
            folder = tmp_path_factory.mktemp("pairs")
            (folder / "server.yaml").write_text(SERVER)
            server = serving(str(folder / "server.yaml"), patience_s=START_S)
            return Trial(folder, stack, stack.enter_context(server), happening)

        yield trial


@pytest.mark.parametrize(("happening", "feature"), TRIED)
def test_nothing_is_lost_or_counted_twice(
    trials: Callable[[str], Trial], happening: str, feature: str
) -> None:
    """What a feature has after a happening is what the clients saw, within the documented bound."""
    trial = trials(happening)
    cell = PAIRS[feature][HAPPENINGS.index(happening)]
    assert isinstance(cell, Tried)
    total, late = len(trial.answered), trial.late(cell.lost_s)
    if feature == "quotas":  # what a client did not get may be spent, too
        free = FREE if happening == "one directory for two" else 0
        admitted = [status for _, status in trial.answered].count(200) - free
        assert LIMIT - trial.lost <= admitted <= LIMIT + late
    elif feature == "stock":
        rows = [row for row in merged_rows(trial.folder / "state") if row.model == "simple"]
        count = sum(row.calls for row in rows)
        assert total - late <= count <= total + trial.lost
    elif feature in {"captures", "events", "access log"}:
        ids = trial.ids(feature)
        assert len(set(ids)) == len(ids)
        assert total - late <= len(ids) <= total + trial.lost
    else:
        audit = (trial.folder / "a.log").read_text()
        expected, found = {
            "audit log": (trial.changes, audit.count("\n")),
            "keys of clients": ({401}, trial.revoked),
            "sequences": ([1, 10, 3, 30], trial.sums),
            "pinned models": ({"x"}, trial.pinned),
            "drained endpoints": ({trial.servers["b"]}, trial.endpoints),
            "metrics and their series": (total + trial.others, trial.requests),
        }[feature]
        assert expected == found


async def test_the_next_gateway_continues_a_cutover(tmp_path: Path) -> None:
    """While the former one leads, both have its weights; then the next one leads."""
    async with (
        two_servers() as servers,
        migrating(tmp_path, servers, options=UNCOMPARED) as former,
    ):
        await former.at_step(2)
        async with migrating(tmp_path, servers, options=UNCOMPARED) as following:
            assert {"new"} == set(await following.ask(10))
            leads = [(await each.cutover())["leads"] for each in (former, following)]
            assert [True, False] == leads
            former.gateway.running.stop()
            while not (await following.cutover())["leads"]:
                assert {"new"} == set(await following.ask(1))
            assert {"new"} == set(await following.ask(10))
            assert 100.0 == (await following.cutover())["weight"]


def test_the_table_is_whole() -> None:
    """Each feature has each happening; the tests and the sentences that it names exist."""
    assert {len(HAPPENINGS)} == {len(cells) for cells in PAIRS.values()}
    for cell in {each for cells in PAIRS.values() for each in cells}:
        if isinstance(cell, Shown):
            path = (HERE / cell.file).with_name(f"test_{Path(cell.file).name}.py")
            assert f"def test_{cell.test}(" in path.read_text()
        if isinstance(cell, Tried):
            page, _, sentence = cell.bound.partition(": ")
            text = (HERE.parents[1] / "docs" / page).read_text().replace("`", "")
            assert sentence in " ".join(text.split())
