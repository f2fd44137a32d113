"""Every option of quotas, with one and two workers, without a store and with one at each distance.

The cases come from the settings: a new key, unit, period or kind of budget without a case fails.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from gateway.config.models import Config
from gateway.config.permissions import QuotaConfig, QuotaMatchConfig, QuotaStoreConfig
from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import Client, Context, ModelRef
from gateway.ir.errors import QuotaExceeded
from gateway.ir.identity import Identity
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import raw_tensor
from gateway.quotas import store as quota_store
from gateway.quotas.budgets import Budgets, Clocks, LocalAccounts, ask_nobody
from gateway.quotas.directory import QuotaDirectory
from gateway.quotas.layer import ApplyQuotas, QuotasOfCalls, quota_notes
from gateway.quotas.leases import MOST_COUNTS, LeasedAccounts, QuotaLeader, Rounds
from gateway.quotas.parts import limits_of, quota_rules
from gateway.quotas.pools import LeaseRequest, PoolLeases
from gateway.quotas.store import QuotaStore
from gateway.settings.fields import QUOTA_LIMIT
from gateway.telemetry.call_path import CALL_PATH, CallPath
from tests.simulation.virtual_time import elapse, now, simulate

NOON_S = 12 * 3600.0
CALL_S = 0.5
ELEMENTS, BYTES = 32, 128
GOLD = Identity("gold", frozenset({"g1", "g2"}), "t1", {"team": "x"}, {"scope": "a b"})
FREE = Identity("free")
CLIENTS = [GOLD, GOLD, FREE] * 4  # eight calls of one client and four of another


@dataclass(frozen=True)
class Case:
    """A quota, and how many of the twelve calls it admits."""

    settings: Mapping[str, Any]
    admitted: int
    refused: int | None = None
    is_told: bool = True

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.settings.items())


def case(admitted: int, **settings: Any) -> Case:
    """Return a case whose limit is five calls of all clients in a day."""
    return Case({"limit": "5/day", "by": ["none"]} | settings, admitted)


MATCHES: Mapping[str, tuple[Any, Any]] = {
    "operations": (["inference"], ["metadata"]),
    "clients": (["gold", "free"], ["silver"]),
    "groups": (["g*"], ["g3"]),
    "tiers": (["t1"], ["t2"]),
    "labels": ({"team": ["x"]}, {"team": ["y"]}),
    "claims": ({"scope": ["b"]}, {"scope": ["c"]}),
    "models": (["m"], ["n"]),
    "versions": ([""], ["2"]),
    "protocols": (["oip.*"], ["grps.*"]),
    "listeners": (["main"], ["other"]),
    "routes": (["r*"], ["s"]),
}
"""A condition that holds, for the client `gold` at least, and one that does not."""

OF_GOLD = {"groups", "tiers", "labels", "claims"}
CASES: Mapping[str, Sequence[Case]] = {
    "match": [
        case(9 if key in OF_GOLD else 5, match={key: holds}) for key, (holds, _) in MATCHES.items()
    ]
    + [case(12, match={key: fails}) for key, (_, fails) in MATCHES.items()],
    "by": [
        case(5, by=["none"]),
        case(9, by=["client"]),
        case(9, by=["group"]),
        case(5, by=["model"]),
        case(5, by=["route"]),
        case(9, by=["label:team"]),
        case(9, by=["client", "model"]),
    ],
    "unit": [
        case(5, unit="calls"),
        case(3, unit="elements", limit="100/day"),
        case(3, unit="bytes", limit="400/day"),
        case(2, unit="seconds", limit="1/day"),
    ],
    "limit": [
        *(case(5, limit=f"5/{period}", burst=5) for period in ("s", "min")),
        *(case(5, limit=f"5/{period}") for period in ("hour", "day", "month")),
        case(12, limit="100000/day"),
        case(1, limit="1/day"),
    ],
    "burst": [
        case(3, limit="3/min", burst=3),
        case(1, limit="20/min"),
        case(3, unit="elements", limit="60/min", burst=100),
    ],
    "mode": [
        case(5, mode="enforce"),
        Case({"limit": "5/day", "by": ["none"], "mode": "shadow"}, 12, 7),
    ],
    "headers": [
        case(5, headers=True),
        Case({"limit": "5/day", "by": ["none"], "headers": False}, 5, None, False),
    ],
}


def test_every_setting_has_a_case() -> None:
    """A new key, condition, unit, mode or period of quotas fails here until it has a case."""
    assert set(QuotaConfig.model_fields) == set(CASES)
    assert set(QuotaMatchConfig.model_fields) == set(MATCHES)
    for key in ("unit", "mode"):
        values = set(get_args(QuotaConfig.model_fields[key].annotation))
        assert values == {each.settings[key] for each in CASES[key]}
    periods = QUOTA_LIMIT[QUOTA_LIMIT.index("/(") + 2 : -2].split("|")
    assert set(periods) == {
        str(each.settings["limit"]).partition("/")[2] for each in CASES["limit"]
    }


class SlowStore(QuotaStore):
    """A store whose answers take a while."""

    directory: QuotaDirectory
    delay_s: float

    async def _exchange(self, questions: Sequence[LeaseRequest]) -> None:
        self._asked_at = now()
        await elapse(self.delay_s)
        answers = self.directory.answers(self._name, questions)
        for question, answer in zip(questions, answers, strict=True):
            self._leases.receive(question, answer)


@dataclass
class Gateway:
    """The quotas of a gateway in virtual time."""

    config: Config
    workers: int
    delay_s: float | None
    folder: Path
    refused: Counter[str] = field(default_factory=Counter)
    accounts: list[LocalAccounts | LeasedAccounts] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[ApplyQuotas]]:
        """Yield the layer of each worker."""
        clocks = Clocks(now, lambda: NOON_S + now())
        limits = limits_of(self.config)
        pools = store = None
        if self.delay_s is not None:
            pools = PoolLeases(1, clocks)
            store = SlowStore(QuotaStoreConfig(url="redis://slow"), pools, "one")
            store.directory = QuotaDirectory(self.folder / "store.db", clocks.utc)
            store.delay_s = self.delay_s
            await store.start()
        budgets = Budgets(limits, clocks, pools)
        ask = ask_nobody if store is None else store.ask
        rounds = None
        if self.workers == 1:
            self.accounts.append(LocalAccounts(budgets, clocks, ask))
        else:
            leader = QuotaLeader(budgets, self._exchange, self.workers, ask)
            rounds = Rounds(leader)
            leader.on_answer = rounds.notice
            for number in range(1, self.workers + 1):
                leader.counts[str(number)] = memoryview(bytearray(8 * MOST_COUNTS)).cast("d")
                counts = leader.counts[str(number)]
                self.accounts.append(
                    LeasedAccounts(
                        limits, rounds.notice, clocks, number, counts=counts, memory=str(number)
                    )
                )
            rounds.start()
        rules = quota_rules(self.config)
        try:
            yield [
                ApplyQuotas(
                    served,
                    QuotasOfCalls(rules, "main", route_of=lambda _call: "route"),
                    accounts,
                    on_refused=lambda _quota, _identity, mode: self.refused.update([mode]),
                    utc=clocks.utc,
                )
                for accounts in self.accounts
            ]
        finally:
            if rounds is not None:
                await rounds.stop()
            if store is not None:
                await store.stop()

    async def _exchange(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        sent = orjson.dumps(document)
        return {
            str(number): orjson.loads(orjson.dumps(each.exchange(orjson.loads(sent))))
            for number, each in enumerate(self.accounts, start=1)
            if isinstance(each, LeasedAccounts)
        }


async def served(_call: Call[Any]) -> Any:
    """Answer a call after a while."""
    path = CALL_PATH.get()
    assert path is not None
    path.attempts += 1
    path.upstream_s += CALL_S
    return InferResponse(model=ModelRef("m"), outputs=())


def request(client: Identity) -> InferRequest:
    """Return a call of a client."""
    tensor = raw_tensor("x", Datatype.FP32, (1, ELEMENTS), memoryview(bytes(BYTES)))
    context = Context(protocol="oip.http", client=Client(identity=client))
    return InferRequest(model=ModelRef("m"), inputs=(tensor,), context=context)


async def is_admitted(layer: ApplyQuotas, client: Identity) -> bool:
    """Make a call; return whether it was admitted."""
    CALL_PATH.set(CallPath())
    try:
        await layer(request(client))
    except QuotaExceeded:
        return False
    return True


def gateway(
    settings: Mapping[str, Any], workers: int, delay_s: float | None, folder: Path
) -> Gateway:
    """Return a gateway with one quota."""
    document = {
        "version": "1",
        "listeners": [{"name": "main", "http": "127.0.0.1:0"}],
        "models": {"m": {"backend": "python", "options": {"callable": "a:b"}}},
        "quotas": {"q": settings},
    }
    return Gateway(Config.model_validate(document), workers, delay_s, folder)


@pytest.mark.parametrize("each", [each for key in CASES for each in CASES[key]], ids=str)
def test_an_option_does_the_same_in_each_place(
    each: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twelve calls at alternating workers exactly those are admitted that the quota allows."""
    monkeypatch.setattr(quota_store, "client_of", lambda _config: None)
    for workers, delay_s in itertools.product((1, 2), (None, 0.001, 0.01, 0.03)):
        folder = tmp_path / f"{workers} {delay_s}"
        folder.mkdir()
        check_option(each, workers, delay_s, folder)


def check_option(each: Case, workers: int, delay_s: float | None, folder: Path) -> None:
    """Check how many calls are admitted with one or two workers, with or without a store."""
    made = gateway(each.settings, workers, delay_s, folder)

    async def main() -> tuple[int, set[bool], float]:
        admitted, noted = 0, set()
        async with made.running() as layers:
            for number, client in enumerate(CLIENTS):
                admitted += await is_admitted(layers[number % workers], client)
                notes = quota_notes()
                noted.add(notes is not None and bool(notes.states()))
            return admitted, noted, now()

    admitted, noted, elapsed_s = simulate(main)
    limit = made.config.quotas["q"]
    more = elapsed_s * limit.amount / 60 if limit.period == "min" else 0
    more = elapsed_s * limit.amount if limit.period == "s" else more
    # Seconds are known after a call: each process may make one with what it still holds.
    more += workers - 1 if limit.unit == "seconds" else 0
    assert each.admitted <= admitted <= each.admitted + more, (workers, delay_s)
    if each.refused is not None:
        assert Counter(shadow=each.refused) == made.refused
    if each in CASES["headers"]:
        assert {each.is_told} == noted


@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.03, 0.045])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_calls_of_new_budgets_are_admitted(
    workers: int, delay_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight calls at once of each of eight clients wait for the store, and none is refused."""
    monkeypatch.setattr(quota_store, "client_of", lambda _config: None)
    made = gateway({"limit": "20/day"}, workers, delay_s, tmp_path)

    async def main() -> tuple[int, float]:
        async with made.running() as layers:
            calls = []
            for number in range(64):
                await elapse(0.0037)  # at any time of a question
                client = Identity(f"client-{number % 8}")
                calls.append(asyncio.ensure_future(timed(layers[number % workers], client)))
            found = await asyncio.gather(*calls)
        return sum(is_made for is_made, _ in found), max(wait_s for _, wait_s in found)

    async def timed(layer: ApplyQuotas, client: Identity) -> tuple[bool, float]:
        began = now()
        return await is_admitted(layer, client), now() - began

    admitted, longest_s = simulate(main)
    assert 64 == admitted
    assert longest_s <= 6 * delay_s + 0.03


@pytest.mark.parametrize("workers", [1, 2])
def test_a_store_beyond_its_timeout_costs_no_call(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateway goes on with its own part of the budget, which is the whole of one gateway."""
    monkeypatch.setattr(quota_store, "client_of", lambda _config: None)
    made = gateway({"limit": "100/day", "by": ["none"]}, workers, 0.2, tmp_path)

    async def main() -> int:
        async with made.running() as layers:
            found = [await is_admitted(layers[number % workers], GOLD) for number in range(120)]
        return sum(found)

    assert 100 == simulate(main)


@pytest.mark.parametrize("workers", [1, 2])
def test_calls_that_wait_get_leases_in_their_order(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later call of a budget is made before an earlier one at the same worker."""
    monkeypatch.setattr(quota_store, "client_of", lambda _config: None)
    made = gateway({"limit": "10/day", "by": ["none"]}, workers, 0.01, tmp_path)
    order: list[int] = []

    async def main() -> None:
        async with made.running() as layers:

            async def call(number: int) -> None:
                if await is_admitted(layers[0], GOLD):
                    order.append(number)

            calls = []
            for number in range(30):
                calls.append(asyncio.ensure_future(call(number)))
                await elapse(0.0013 * (number % 3))
            await asyncio.gather(*calls)

    simulate(main)
    assert list(range(10)) == order
