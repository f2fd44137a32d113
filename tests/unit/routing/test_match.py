"""Rules: globs, versions, protocols, headers; the first match wins and can be explained."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.ir.calls import InferRequest, ServerLiveRequest
from gateway.ir.context import Context, ModelRef
from gateway.routing.match import Matcher, RouteVerdict, Rule


def call(
    name: str = "digits",
    version: str = "",
    protocol: str = "oip.http",
    headers: tuple[tuple[str, str], ...] = (),
) -> InferRequest:
    return InferRequest(
        model=ModelRef(name, version), context=Context(protocol=protocol, metadata=headers)
    )


@dataclass(frozen=True)
class Case:
    name: str
    rule: Rule
    call: InferRequest
    matched: bool


CASES = [
    Case("empty_rule_takes_all", Rule(), call(), True),
    Case("exact_name", Rule(model="digits"), call(), True),
    Case("other_name", Rule(model="digit"), call(), False),
    Case("star", Rule(model="dig*"), call(), True),
    Case("question_mark", Rule(model="digit?"), call(), True),
    Case("set", Rule(model="[cd]igits"), call(), True),
    Case("case_counts", Rule(model="Digits"), call(), False),
    Case("dot_is_no_wildcard", Rule(model="a.b"), call("axb"), False),
    Case("star_takes_newlines", Rule(model="a*"), call("a\nb"), True),
    Case("version", Rule(versions=("1", "2")), call(version="2"), True),
    Case("version_not_listed", Rule(versions=("1",)), call(version="2"), False),
    Case("version_not_asked", Rule(versions=("1",)), call(), False),
    Case("no_version_listed", Rule(versions=("",)), call(), True),
    Case("protocol_glob", Rule(protocols=("oip.*",)), call(), True),
    Case("protocol_other", Rule(protocols=("grps.*", "oip.grpc")), call(), False),
    Case("header", Rule(headers={"X-Tier": "gold*"}), call(headers=(("x-tier", "golden"),)), True),
    Case("header_absent", Rule(headers={"x-tier": "*"}), call(), False),
    Case("header_other", Rule(headers={"x-tier": "g"}), call(headers=(("x-tier", "s"),)), False),
    Case(
        "one_of_many_values",
        Rule(headers={"a": "2"}),
        call(headers=(("a", "1"), ("a", "2"))),
        True,
    ),
    Case("both_headers", Rule(headers={"a": "1", "b": "2"}), call(headers=(("a", "1"),)), False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rule_matches_when_all_conditions_hold(case: Case) -> None:
    """`find` and `explain` agree."""
    matcher = Matcher([case.rule])
    expected = 0 if case.matched else None
    assert expected == matcher.find(case.call)
    assert expected == matcher.find(case.call), "the remembered answer is the same"
    assert case.matched == matcher.explain(case.call)[0].is_match


def test_the_first_matching_rule_wins() -> None:
    """Later matching rules are ignored."""
    assert 1 == Matcher([Rule(model="x"), Rule(), Rule(model="digits")]).find(call())


def test_header_rules_are_checked_for_each_call() -> None:
    """The cached candidates of a name do not decide about headers."""
    matcher = Matcher([Rule(headers={"x-tier": "gold"}), Rule(model="digits")])
    gold = call(headers=(("x-tier", "gold"),))
    assert [0, 1, 0] == [matcher.find(gold), matcher.find(call()), matcher.find(gold)]


def test_a_server_call_has_an_empty_model_name() -> None:
    """A call without a model matches only rules for the empty name."""
    matcher = Matcher([Rule(model="?*"), Rule(model="*")])
    assert 1 == matcher.find(ServerLiveRequest())


def test_the_cache_of_names_is_bounded() -> None:
    """Names from clients do not accumulate."""
    matcher = Matcher([Rule(model="a*")])
    for number in range(10_000):
        matcher.find(call(f"a{number}"))
    assert len(matcher._candidates) <= 4096


def test_explanations_name_each_condition() -> None:
    """A failed condition has the found and the expected value."""
    rules = [
        Rule(
            model="x*",
            versions=("1", "2"),
            protocols=("grps.*",),
            headers={"X-Tier": "gold", "x-zone": "a"},
        ),
        Rule(model="digits", versions=("3",), protocols=("oip.*",), headers={"x-tier": "s*"}),
        Rule(versions=("1",)),
    ]
    request = call(version="3", headers=(("x-tier", "silver"),))
    assert [
        RouteVerdict(
            0,
            False,
            (
                "model 'digits' does not match 'x*'",
                "version '3' does not match '1', '2'",
                "protocol 'oip.http' does not match 'grps.*'",
                "header 'X-Tier' is 'silver'; expected 'gold'",
                "header 'x-zone' is missing; expected 'a'",
            ),
        ),
        RouteVerdict(
            1,
            True,
            ("matches model 'digits', version '3', protocol 'oip.*', header 'x-tier' 's*'",),
        ),
        RouteVerdict(2, False, ("version '3' does not match '1'",)),
    ] == Matcher(rules).explain(request)
    assert ("no version does not match '1'",) == Matcher(rules).explain(call())[2].reasons


def test_matches_model_checks_names_only() -> None:
    """Whether a name is served does not depend on version, protocol or headers."""
    matcher = Matcher([Rule(model="a*", versions=("9",), headers={"h": "v"})])
    assert (True, False) == (matcher.matches_model("ab"), matcher.matches_model("b"))


@pytest.mark.parametrize("name", ["a", "b", "ab", "a*", "[a]", "c", ""])
def test_rules_of_one_model_and_of_many_keep_their_order(name: str) -> None:
    """Rules are found by the name of the model, and the first one wins as when all are read."""
    models = ("b", "a?", "a", "[a]", "a", "a*", "", "b*", "b")
    for start in range(len(models)):
        rules = [Rule(model=model, versions=("1",)) for model in models[start:]]
        matcher = Matcher(rules)
        found = [each.index for each in matcher.explain(call(name, "1")) if each.is_match]
        assert (found[0] if found else None) == matcher.find(call(name, "1"))
        assert bool(found) == matcher.matches_model(name)
