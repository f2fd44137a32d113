"""Guards: which limits hold, trip, or need more calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from gateway.config.load import ConfigError, load_text
from gateway.ir.errors import ErrorCode
from gateway.migration.compare.conditions import parse_fail_if
from gateway.migration.compare.replies import Comparison, Result, compare_results
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.summary import Summary
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import (
    Evidence,
    GuardVerdict,
    Standing,
    evidence_of,
    unjudged_calls,
    unjudged_mismatches,
    verdict_text,
)
from gateway.migration.settings import MIGRATIONS, GuardsConfig

OK = Result(((),))
BASE = "version: 1\nlisteners: [{http: 8000}]\nmigrations: {m: {cutover: {guards: {%s}}}}\n"


def guards_of(text: str) -> GuardsConfig:
    """Return limits; without a text of one, there is no limit of mismatches."""
    if "mismatch" not in text:
        text = f"{text}, mismatch: off" if text else "mismatch: off"
    return MIGRATIONS.of(load_text(BASE % text).config)["m"].guards


def evidence(
    outcome: Outcome = Outcome.MATCH,
    *,
    old: ErrorCode | None = None,
    new: ErrorCode | None = None,
    times: tuple[float, float] = (0.1, 0.1),
    at_s: float = 0.0,
) -> Evidence:
    results = [OK if each is None else Result(error=each) for each in (old, new)]
    return evidence_of(results[0], results[1], Comparison(outcome), times, at_s)


def judged(text: str, calls: Iterable[Evidence]) -> dict[str, tuple[str, str]]:
    """Return verdict and evidence of each guard."""
    guards = Guards(guards_of(text))
    for call in calls:
        guards.add(call)
    return {each.guard: (each.standing.value, each.evidence) for each in guards.verdicts()}


WRONG = evidence(Outcome.MISMATCH)
GOOD = evidence()


def test_a_rate_holds_after_enough_calls() -> None:
    """680 good calls prove a rate below 1 %, and 679 do not."""
    text = "mismatch: {below: 1%}, errors: off"
    assert judged(text, [GOOD] * 680) == {
        "mismatch.below": ("holds", "0 of 680, at most 0.999%, limit 1.000%")
    }
    standing, found = judged(text, [GOOD] * 679)["mismatch.below"]
    assert (standing, found) == (
        "undecided",
        "0 of 679, at most 1.001%, limit 1.000%; 680 calls without one are needed",
    )


def test_a_tripped_rate_stays_tripped() -> None:
    """4 failures after a long good run trip a limit of 1 %; later good calls do not reset it."""
    calls = [*[GOOD] * 10_000, *[WRONG] * 4, *[GOOD] * 10_000]
    found = judged("mismatch: {below: 1%}", calls)["mismatch.below"]
    assert found[0] == "trips"
    assert found[1].endswith("; tripped after call 10004")
    assert judged("mismatch: {below: 1%}", calls[:10_003])["mismatch.below"][0] == "holds"


def test_wrong_labels_trip_only_the_mismatch_guard() -> None:
    """1 % of the replies are wrong, with good status and latency."""
    wrong = (np.random.default_rng(1).random(5_000) < 0.01).tolist()
    text = "mismatch: {below: 0.1%}, errors: {below: 1%, above_old: 0.5%}, latency: {p99: 1s, p99_ratio: 1.3}"
    found = judged(text, (WRONG if each else GOOD for each in wrong))
    assert {guard: standing for guard, (standing, _) in found.items()} == {
        "mismatch.below": "trips",
        "errors.below": "holds",
        "errors.above_old": "holds",
        "latency.p99": "holds",
        "latency.p99_ratio": "holds",
    }


@pytest.mark.parametrize(
    ("call", "bad"),
    [
        (evidence(Outcome.NEW_ERROR, new=ErrorCode.INVALID_ARGUMENT), True),
        (evidence(Outcome.TIMEOUT, new=ErrorCode.DEADLINE_EXCEEDED), True),
        (evidence(Outcome.MATCH, old=ErrorCode.UPSTREAM, new=ErrorCode.UPSTREAM), True),
        (evidence(Outcome.MATCH, old=ErrorCode.NOT_FOUND, new=ErrorCode.NOT_FOUND), False),
        (evidence(Outcome.OLD_ERROR, old=ErrorCode.INTERNAL), False),
        (WRONG, False),
    ],
    ids=str,
)
def test_errors_of_the_new_server_count(call: Evidence, bad: bool) -> None:
    """Mismatches, errors of the old server and cancelled calls do not count."""
    _, found = judged("errors: {below: 1%}", [call])["errors.below"]
    assert found.startswith(f"{int(bad)} of 1,")


def test_a_call_whose_client_left_is_no_evidence_of_errors() -> None:
    """It is neither good nor bad."""
    text = "errors: {below: 1%, above_old: 1%}"
    for call in (
        evidence(Outcome.NEW_ERROR, new=ErrorCode.CANCELLED),
        evidence(Outcome.OLD_ERROR, old=ErrorCode.CANCELLED),
    ):
        assert "0 calls" in judged(text, [call])["errors.above_old"][1]
    left = evidence(Outcome.NEW_ERROR, new=ErrorCode.CANCELLED)
    assert judged(text, [left])["errors.below"][1].startswith("0 of 0,")


@pytest.mark.parametrize("has_noise", [False, True])
def test_failed_calls_do_not_make_the_mismatch_guard_hold(has_noise: bool) -> None:
    """10 000 calls that the new server refuses leave it undecided, with no call."""
    guards = Guards(guards_of("mismatch: {below: 1%}"), has_noise=has_noise)
    for _ in range(10_000):
        guards.add(evidence(Outcome.NEW_ERROR, new=ErrorCode.INVALID_ARGUMENT))
        if has_noise:
            guards.add_noise(False)
    found = {each.guard: each for each in guards.verdicts()}["mismatch.below"]
    assert (Standing.UNDECIDED, "0 of ") == (found.standing, found.evidence[:5])
    assert "10000" not in found.evidence.partition(",")[0]


def test_errors_of_both_servers_are_no_excess() -> None:
    """The same rate at both is no excess; errors of only the new server trip."""
    both = evidence(old=ErrorCode.NOT_FOUND, new=ErrorCode.NOT_FOUND)
    text = "errors: {above_old: 5%}"
    same = judged(text, [*[both] * 20, *[GOOD] * 980])
    assert same == {
        "errors.above_old": (
            "holds",
            "20 at new and 20 at old in 1000 calls, -0.700% to 0.700% more, limit 5.000%",
        )
    }
    alone = evidence(Outcome.NEW_ERROR, new=ErrorCode.INTERNAL)
    standing, found = judged(text, [*[GOOD] * 50, *[alone] * 10])["errors.above_old"]
    assert (standing, found.partition("; ")[2]) == ("trips", "tripped after call 55")
    assert found.startswith(
        "5 of the last 10 calls failed at new alone, and 0 of 50 at old alone, limit 5.000%"
    )


def test_earlier_errors_of_the_old_server_do_not_offset_later_ones_of_the_new() -> None:
    """All calls let the guard hold, and the latest ones let it trip."""
    before = [evidence(Outcome.OLD_ERROR, old=ErrorCode.INTERNAL)] * 1_000
    calls = [*before, *[GOOD] * 1_000]
    found = judged("errors: {above_old: 5%}", calls)["errors.above_old"]
    assert found[0] == "holds"
    assert found[1].startswith("0 at new and 1000 at old in 2000 calls")
    alone = evidence(Outcome.NEW_ERROR, new=ErrorCode.INTERNAL)
    found = judged("errors: {above_old: 5%}", [*calls, *[alone] * 10])["errors.above_old"]
    assert found[0] == "trips"


def test_an_excess_below_a_small_limit_holds() -> None:
    """A limit of 0.5 % needs more calls than the thousand by which the guard trips."""
    found = judged("errors: {above_old: 0.5%}", [GOOD] * 1_500)["errors.above_old"]
    assert found[0] == "holds"


def slow(seconds: float, factor: float = 2.0) -> list[Evidence]:
    """Return 100 calls a second that take twice the time at the new server."""
    count = round(seconds * 100)
    return [evidence(times=(0.1, 0.1 * factor), at_s=number / 100) for number in range(count)]


@pytest.mark.parametrize(
    ("text", "guard", "seconds"),
    [
        ("latency: {p99: 150ms}", "latency.p99", 10.0),
        ("latency: {p99_ratio: 1.3}", "latency.p99_ratio", 10.03),
    ],
)
def test_latency_trips_after_two_failed_checks(text: str, guard: str, seconds: float) -> None:
    """Checks are ten seconds from each other; a ratio trips by the latest calls, from the fourth on."""
    assert judged(text, slow(seconds))[guard][0] == "undecided"
    assert judged(text, slow(seconds + 0.01))[guard][0] == "trips"
    assert judged(text, slow(60.0, factor=1.0))[guard][0] == "holds"


LATENCIES = pytest.mark.parametrize(
    ("text", "guard"),
    [("latency: {p99: 150ms}", "latency.p99"), ("latency: {p99_ratio: 1.3}", "latency.p99_ratio")],
)


@LATENCIES
@pytest.mark.parametrize("good_s", [10, 60, 600])
def test_latency_trips_by_the_latest_calls(text: str, guard: str, good_s: int) -> None:
    """It trips ten seconds after the server became slow, however long all was well before."""
    guards = Guards(guards_of(text))
    for number in range(good_s * 10):
        guards.add(evidence(times=(0.1, 0.1), at_s=number / 10))
    standings = []
    for number in range(110):
        guards.add(evidence(times=(0.1, 0.4), at_s=good_s + number / 10))
        standings.append({each.guard: each.standing for each in guards.verdicts()}[guard])
    assert Standing.HOLDS not in standings[1:]
    assert Standing.TRIPS is standings[-1]
    assert Standing.TRIPS not in standings[:80]


@LATENCIES
def test_a_short_pause_of_the_server_trips_nothing(text: str, guard: str) -> None:
    """The guard waits for a hundred quick calls, and then holds again."""
    calls = [evidence(times=(0.1, 0.1), at_s=number / 100) for number in range(6_000)]
    calls[3_000:3_020] = [
        evidence(times=(0.1, 0.4), at_s=30 + number / 100) for number in range(20)
    ]
    assert "undecided" == judged(text, calls[:3_020])[guard][0]
    assert "; 20 of the last 100 calls are slower" in judged(text, calls[:3_020])[guard][1]
    assert "holds" == judged(text, calls)[guard][0]


def test_a_call_that_is_slow_at_both_servers_does_not_break_a_ratio() -> None:
    """A load that slows both down is no fault of the new one."""
    text = "latency: {p99_ratio: 1.3}"
    calls = [evidence(times=(0.1, 0.1), at_s=number / 10) for number in range(3_000)]
    both = [evidence(times=(0.4, 0.4), at_s=300 + number / 10) for number in range(300)]
    assert "holds" == judged(text, [*calls, *both])["latency.p99_ratio"][0]


def test_few_calls_leave_latency_undecided() -> None:
    """A p99 has no upper bound below 368 calls, and failed calls have no latency."""
    text = "latency: {p99: 200ms}"
    assert judged(text, slow(3.67, factor=1.0))["latency.p99"] == (
        "undecided",
        "100 ms in 367 calls, 100 ms to ?, limit 200 ms",
    )
    assert judged(text, slow(3.68, factor=1.0))["latency.p99"][0] == "holds"
    failed = evidence(Outcome.NEW_ERROR, new=ErrorCode.INTERNAL)
    assert judged(text, [failed] * 1_000)["latency.p99"] == ("undecided", "no call, limit 200 ms")


@pytest.mark.parametrize("text", ["", "errors: off", "latency: {}"])
def test_plans_have_a_guard_of_replies_by_default(text: str) -> None:
    """Wrong labels and NaN trip it; only `off` switches it off, or outputs that are all ignored."""
    config = MIGRATIONS.of(load_text(BASE % text).config)["m"]
    guards = Guards(config.guards)
    for _ in range(10):
        guards.add(WRONG)
    found = {each.guard: each.standing for each in guards.verdicts()}
    assert Standing.TRIPS is found["mismatch.below"]
    good = Guards(config.guards)
    for _ in range(500):  # the default of `min_calls`
        good.add(GOOD)
    assert {Standing.HOLDS} == {each.standing for each in good.verdicts()}
    plan = f"cutover: {{guards: {{{text}}}}}, compare: {{default: ignore, outputs: {{y: ignore}}}}"
    ignored = load_text(f"version: 1\nlisteners: [{{http: 8000}}]\nmigrations: {{m: {{{plan}}}}}\n")
    verdicts = Guards(MIGRATIONS.of(ignored.config)["m"].guards).verdicts()
    assert "mismatch.below" not in [each.guard for each in verdicts]


def test_mismatches_that_nothing_judges_are_named_in_the_verdict() -> None:
    """Without a condition or guard on replies, the verdict is not a plain `none` or `passed`."""
    summary = Summary()
    summary.add("c", Comparison(Outcome.MISMATCH))
    errors, mismatch = (parse_fail_if(text) for text in ("errors>1%", "mismatch.y>50%"))
    found = unjudged_mismatches(summary, [errors], [])
    assert found.startswith("1 of 1 compared replies DIFFER, and nothing judges that")
    none = verdict_text([], [], has_conditions=False, mismatches=found)
    assert f"none (no --fail-if and no guard), BUT {found}" == none
    assert f"passed, BUT {found}" == verdict_text([], [], has_conditions=True, mismatches=found)
    assert "" == unjudged_mismatches(summary, [mismatch])
    guard = GuardVerdict("mismatch.below", Standing.UNDECIDED, "")
    assert "" == unjudged_mismatches(summary, [], [guard])
    assert "" == unjudged_mismatches(Summary(), [], [])


@pytest.mark.parametrize("text", ["", "errors: {}, latency: {}", "errors: null"])
def test_plans_have_a_guard_of_errors_by_default(text: str) -> None:
    """Each other limit is optional, and only `off` switches this one off."""
    assert ["errors.above_old"] == list(judged(text, [WRONG]))
    assert ["errors.below"] == list(judged("errors: {below: 1%}", [WRONG]))
    assert {} == judged("errors: off", [WRONG])
    refused = evidence(Outcome.NEW_ERROR, new=ErrorCode.INVALID_ARGUMENT)
    assert "trips" == judged(text, [refused] * 4)["errors.above_old"][0]
    assert "holds" == judged(text, [GOOD] * 320)["errors.above_old"][0]


def test_migrations_without_a_cutover_have_no_guards() -> None:
    """The default is one of plans: nothing moves where there is none."""
    text = "version: 1\nlisteners: [{http: 8000}]\nmigrations: {m: {}}\n"
    assert [] == Guards(MIGRATIONS.of(load_text(text).config)["m"].guards).verdicts()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mismatch: {below: 0.1}", "'0.1' is not a share: expected 0% to 100%, as in 0.1%"),
        ("mismatch: {below: 0%}", "greater than 0"),
        ("mismatch: {}", "below"),
        ("errors: {below: 0.1}", "'0.1' is not a share: expected 0% to 100%, as in 0.1%"),
        ("errors: {below: 100%}", "less than 1"),
        ("errors: {above: 1%}", "unknown key"),
        ("latency: {p99: 200}", "is not a duration"),
        ("latency: {p99_ratio: 0}", "greater than 0"),
    ],
)
def test_invalid_limits_are_rejected(text: str, problem: str) -> None:
    """The error names the key and the expected form."""
    with pytest.raises(ConfigError, match=problem):
        guards_of(text)


def verdict(failures: list[str], text: str, calls: list[Evidence], **options: Any) -> str:
    guards = Guards(guards_of(text))
    for call in calls:
        guards.add(call)
    return verdict_text(failures, guards.verdicts(), **({"has_conditions": True} | options))


def test_the_verdict_names_failed_and_undecided_guards() -> None:
    """Failures precede the guards that need more calls."""
    text = "mismatch: {below: 1%}, errors: off"
    assert verdict(["p99 2 > 1"], text, [WRONG] * 4) == "failed, p99 2 > 1; mismatch.below trips"
    assert verdict([], text, [GOOD]) == "undecided, mismatch.below"
    assert verdict([], text, [GOOD] * 680, has_conditions=False) == "passed"
    assert verdict([], "errors: off", [GOOD]) == "passed"
    nothing = verdict([], "errors: off", [GOOD], has_conditions=False)
    assert nothing == "none (no --fail-if and no guard)"


def test_failed_calls_without_a_condition_on_errors_are_no_pass() -> None:
    """The verdict is undecided, unless a condition or a guard judges errors."""
    summary = Summary()
    refused = compare_results(OK, Result(error=ErrorCode.INVALID_ARGUMENT), OutputRules())
    summary.add("c", refused)
    mismatch, errors = (parse_fail_if(text) for text in ("mismatch>1%", "errors>50%"))
    guard = GuardVerdict("errors.above_old", Standing.HOLDS, "")
    (found,) = unjudged_calls(summary, [mismatch], [])
    assert found.startswith("1 of 1 calls failed at the new server, and nothing judges errors")
    text = verdict_text([], [], has_conditions=True, unjudged=[found])
    assert text == f"undecided, {found}"
    assert [] == unjudged_calls(summary, [mismatch, errors], [])
    assert [] == unjudged_calls(summary, [], [guard])
    summary.unreadable = 2
    assert ["2 calls have replies that cannot be compared"] == unjudged_calls(summary, [], [guard])


def test_mismatches_of_a_noisy_server_do_not_trip() -> None:
    """With noise the limit applies to the excess over the old server's own mismatches."""
    text = "mismatch: {below: 2%}, errors: off"
    noisy = Guards(guards_of(text), has_noise=True)
    quiet = Guards(guards_of(text), has_noise=True)
    for number in range(1000):
        is_bad = not number % 10
        for guards in (noisy, quiet):
            guards.add(WRONG if is_bad else GOOD)
        noisy.add_noise(is_bad)
        quiet.add_noise(False)
    (found,) = noisy.verdicts()
    assert found.standing is Standing.UNDECIDED
    assert found.evidence.startswith("100 of 1000 differ, and 100 of 1000 of the old")
    assert [each.standing for each in quiet.verdicts()] == [Standing.TRIPS]
    for _ in range(1000):
        noisy.add(GOOD)
    assert [each.standing for each in noisy.verdicts()] == [Standing.HOLDS]


ALL_GUARDS = (
    "mismatch: {below: 1%}, errors: {below: 1%, above_old: 0.5%}, "
    "latency: {p99: 150ms, p99_ratio: 1.3}"
)


def random_calls(count: int, factor: float = 1.0, at_s: float = 0.0) -> list[Evidence]:
    """Return calls of which some fail at either server, with times of microseconds."""
    random = np.random.default_rng(5)
    codes = [None] * 18 + [ErrorCode.INTERNAL, ErrorCode.NOT_FOUND]
    found = []
    for number in range(count):
        old, new = (codes[each] for each in random.integers(0, len(codes), 2).tolist())
        outcome = Outcome.MATCH if old is new else Outcome.NEW_ERROR if new else Outcome.OLD_ERROR
        seconds = (random.integers(50_000, 100_000, 2) / 1e6).tolist()
        times = (seconds[0], seconds[1] * factor)
        found.append(evidence(outcome, old=old, new=new, times=times, at_s=at_s + number / 100))
    return found


def restarted(guards: Guards, text: str, *, has_noise: bool = False) -> Guards:
    """Return guards that continue, by way of JSON."""
    again = Guards(guards_of(text), has_noise=has_noise)
    assert [] == again.resume(json.loads(json.dumps(guards.counts())))
    return again


@pytest.mark.parametrize("before", [0, 1, 700, 999, 1_000])
def test_a_restart_does_not_change_the_verdicts(before: int) -> None:
    """The windows keep a thousand calls; 700 more follow the restart."""
    calls = random_calls(before + 700)
    whole, first = Guards(guards_of(ALL_GUARDS)), Guards(guards_of(ALL_GUARDS))
    for call in calls[:before]:
        whole.add(call)
        first.add(call)
    again = restarted(first, ALL_GUARDS)
    if before:
        assert [each.standing for each in whole.verdicts()] == [
            each.standing for each in again.verdicts()
        ]
    for call in calls[before:]:
        whole.add(call)
        again.add(call)
    found = {each.guard: each for each in again.verdicts()}
    for each in whole.verdicts():
        # Counts of the first trip, and looks at times, depend on when the process began.
        expected, _, _ = each.evidence.partition("; tripped")
        assert expected == found[each.guard].evidence.partition("; tripped")[0]


def test_a_tripped_guard_stays_tripped_after_a_restart() -> None:
    """Good calls after the restart do not reset it."""
    text = "errors: {above_old: 0.5%}, latency: {p99: 150ms, p99_ratio: 1.3}"
    guards = Guards(guards_of(text))
    failed = evidence(Outcome.NEW_ERROR, new=ErrorCode.INTERNAL)
    for call in (*slow(21.0), *[GOOD] * 50, *[failed] * 40):
        guards.add(call)
    assert [Standing.TRIPS] * 3 == [each.standing for each in guards.verdicts()]
    again = restarted(guards, text)
    for _ in range(2_000):
        again.add(GOOD)
    assert [Standing.TRIPS] * 3 == [each.standing for each in again.verdicts()]
    assert (
        guards.verdicts()[0].evidence.partition("; ")[2]
        == (again.verdicts()[0].evidence.partition("; ")[2])
    )


def test_latency_trips_soon_after_a_restart() -> None:
    """The earlier latencies are kept, and two new checks are needed."""
    text = "latency: {p99_ratio: 1.3}, errors: off"
    guards = Guards(guards_of(text))
    for call in slow(9.0):
        guards.add(call)
    again = restarted(guards, text)
    for number in range(1001):
        again.add(evidence(times=(0.1, 0.2), at_s=5 + number / 100))
        expected = Standing.TRIPS if number == 1000 else Standing.UNDECIDED
        assert expected is again.verdicts()[0].standing


def test_the_excess_over_noise_continues_after_a_restart() -> None:
    """Both sides are kept, also with different numbers of calls."""
    text = "mismatch: {below: 2%}"
    guards = Guards(guards_of(text), has_noise=True)
    for number in range(1_300):
        guards.add(WRONG if number % 10 == 0 else GOOD)
        if number % 3 == 0:
            guards.add_noise(number % 30 == 0)
    again = restarted(guards, text, has_noise=True)
    assert guards.verdicts() == again.verdicts()
    for each in (guards, again):
        for _ in range(100):
            each.add(WRONG)
    assert Standing.TRIPS is again.verdicts()[0].standing
    assert guards.verdicts() == again.verdicts()
    # Counts of mismatches alone are no counts of an excess.
    plain = Guards(guards_of(text))
    assert [] == plain.resume(again.counts())
    assert plain.verdicts()[0].evidence.startswith("0 of 0")


def test_the_saved_counts_are_bounded() -> None:
    """A ConfigMap and the state file store them every five seconds."""
    for has_noise in (False, True):
        guards = Guards(guards_of(ALL_GUARDS), has_noise=has_noise)
        for _ in range(12_000):
            guards.add(evidence(times=(3600.0, 3600.0)))
            guards.add_noise(False)
        assert len(json.dumps(guards.counts())) < 64_000


@pytest.mark.parametrize(
    "damaged",
    [
        {"mismatch.below": [1]},
        {"errors.above_old": [1]},
        {"errors.above_old": [1, 0, 4]},
        {"errors.above_old": [1, 0, -1]},
        {"errors.above_old": [1, 0] + [0] * 1_001},
        {"latency.p99": [0, 1]},
        {"latency.p99": [0] + [1] * 2_002},
        {"latency.p99": [float("inf")]},
        {"latency.p99_ratio": [float("nan")]},
    ],
    ids=lambda found: f"{next(iter(found))} {next(iter(found.values()))}"[:40],
)
def test_damaged_counts_are_rejected(damaged: dict[str, list[float]]) -> None:
    """The damaged guard is reported and starts from zero; the others continue."""
    guards, fresh = Guards(guards_of(ALL_GUARDS)), Guards(guards_of(ALL_GUARDS))
    for call in random_calls(500):
        guards.add(call)
    again = Guards(guards_of(ALL_GUARDS))
    assert list(damaged) == again.resume({**guards.counts(), **damaged})
    for old, new, found in zip(guards.verdicts(), fresh.verdicts(), again.verdicts(), strict=True):
        expected = new if found.guard in damaged else old
        assert expected.evidence.partition("; ")[0] == found.evidence.partition("; ")[0]


@pytest.mark.parametrize(
    ("rate", "limit", "share", "runs"), [(0.1, "2%", 0.2, 100), (0.5, "5%", 1.0, 50)]
)
def test_noise_of_equal_servers_seldom_trips(
    rate: float, limit: str, share: float, runs: int
) -> None:
    """The guard looks after each of 1 000 calls, and at most one of 50 or 100 runs trips."""
    trips = 0
    for seed in range(runs):
        random = np.random.default_rng(seed)
        guards = Guards(guards_of(f"mismatch: {{below: {limit}}}, errors: off"), has_noise=True)
        draws = random.random((1_000, 3)).tolist()
        for found, noise, drawn in draws:
            guards.add(WRONG if found < rate else GOOD)
            if drawn < share:
                guards.add_noise(noise < rate)
        trips += guards.verdicts()[0].standing is Standing.TRIPS
    assert trips <= 1


def test_a_tripped_guard_quotes_the_calls_that_tripped_it() -> None:
    """Thousands of good calls before them are in no number of the reason."""
    text = "mismatch: {below: 1%}, errors: {below: 1%, above_old: 1%}"
    failed = evidence(Outcome.NEW_ERROR, new=ErrorCode.INTERNAL)
    found = judged(text, [*[GOOD] * 5_000, *[WRONG] * 4, *[failed] * 5])
    assert {
        "mismatch.below": ("trips", "4 of the last 4, limit 1.000%; tripped after call 5004"),
        "errors.below": ("trips", "4 of the last 4, limit 1.000%; tripped after call 5008"),
    } == {guard: found[guard] for guard in ("mismatch.below", "errors.below")}
    assert found["errors.above_old"][1].startswith("5 of the last 10 calls failed at new alone")


def test_a_tripped_guard_of_times_quotes_the_times_that_tripped_it() -> None:
    """Thousands of quick calls after them are in no number of the reason."""
    text = "latency: {p99: 150ms}, errors: off"
    quick = evidence(times=(0.1, 0.1), at_s=100.0)
    found = judged(text, [*slow(10.01), *[quick] * 9_500])["latency.p99"]
    assert found == ("trips", "200 ms in 1001 calls, 200 ms to 200 ms, limit 150 ms")


def test_a_restart_invents_no_numbers_that_tripped_a_guard() -> None:
    """What tripped it is forgotten, and all calls would be other numbers than these."""
    text = "errors: {above_old: 0.5%}, latency: {p99: 150ms}"
    guards = Guards(guards_of(text))
    failed = evidence(Outcome.NEW_ERROR, new=ErrorCode.INTERNAL)
    for call in (*slow(10.01), *[failed] * 10, *[GOOD] * 2_000):
        guards.add(call)
    assert {
        "errors.above_old": ("trips", "limit 0.500%; tripped after call 1006"),
        "latency.p99": ("trips", "limit 150 ms; tripped before a restart"),
    } == {
        each.guard: (each.standing.value, each.evidence)
        for each in restarted(guards, text).verdicts()
    }
