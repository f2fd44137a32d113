"""Plans of cut-overs: which state belongs to a configuration, also after an upgrade."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text
from gateway.migration.cutover.plans import cutover_plans

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
state: {directory: state}
upstreams: {old: {url: "oip+http://127.0.0.1:1"}, new: {url: "oip+http://127.0.0.1:2"}}
routes: [{name: r, targets: [{upstream: old}, {upstream: new, weight: 0}]}]
migrations:
  m:
    route: r
    old: old
    new: new
    compare: {outputs: {OUT: {atol: 1}}}
    cutover: {steps: [50, 100], bake: 1h, guards: {errors: {below: 1%}, mismatch: {below: 1%}}}
"""
# What commit 06ce345e writes into the state of this plan.
DIGEST = "95952320a64e85f44ebb760dce2ce008c4f20cb56bd305bf3b07b2568a52ce23"
EARLIER_DIGEST = "0ba6ffbbf0be815ceeaa6712f338a0088beeec4e43981488e25dfbfa0e357f9c"


def digest(text: str) -> str:
    (plan,) = cutover_plans(load_text(text).config).values()
    return plan.digest


def test_a_state_of_an_earlier_version_belongs_to_its_plan() -> None:
    """Keys that came since leave the hash as it was; else an upgrade would end the cut-over."""
    assert DIGEST == digest(CONFIG)


def test_a_state_without_a_guard_of_replies_belongs_to_a_plan_with_the_default_one() -> None:
    """Its hash is what commit 06ce345e writes; a guard that is off by name is another plan."""
    plain = CONFIG.replace(", mismatch: {below: 1%}", "")
    assert EARLIER_DIGEST == digest(plain)
    (plan,) = cutover_plans(load_text(plain).config).values()
    assert ("mismatch.below",) == plan.implied_guards
    assert "mismatch.below" in plan.guards
    assert digest(plain) != digest(CONFIG.replace("mismatch: {below: 1%}", "mismatch: off"))


@pytest.mark.parametrize(
    ("before", "after"),
    [("atol: 1}", "rule: exact}"), ("bake: 1h", "bake: 2h"), ("atol: 1}", "atol: 2}")],
)
def test_another_plan_has_another_hash(before: str, after: str) -> None:
    """A state goes with the configuration that it was made for."""
    assert DIGEST != digest(CONFIG.replace(before, after))
