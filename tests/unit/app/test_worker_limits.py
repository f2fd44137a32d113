"""Settings that are rejected with several workers, with their positions in the file."""

from __future__ import annotations

import pytest

from gateway.app.check.check import check
from gateway.config.load import load_text

GOOD = """version: 1
workers: 2
listeners:
  - http: 8000
    shared_memory: {mode: forward, keys: "*"}
    options:
      oip: {model_control: true, statistics: target, logging: target}
      grps: {switch: false}
upstreams:
  up: {url: "http://h:8000"}
lifecycle:
  online: true
"""
MODEL = 'models: {own: {backend: python, options: {callable: "x:y"}}}\n'
CACHED = "models: {far: {cache: {}}}\n"
STATEFUL = """models:
  own:
    backend: python
    options: {callable: "x:y"}
    signature: {stateful: true}
"""


def test_state_of_upstreams_is_valid_with_workers() -> None:
    """State in the upstreams is the same for all workers."""
    assert [] == check(load_text(GOOD))


REFUSED = [
    (
        'shared_memory: {mode: forward, keys: "*"}',
        "shared_memory: map",
        "5:20: listeners[0].shared_memory",
        "region",
    ),
    ("logging: target", "logging: gateway", "7:", "the log of one worker"),
    ("statistics: target", "statistics: gateway", "7:", "report one worker's counts only"),
    (
        "switch: false",
        "switch: true",
        "8:22: listeners[0].options.grps.switch",
        "online or offline",
    ),
    ("online: true", "online: false", "12:11: lifecycle.online", "reach one worker only"),
    ("lifecycle:", STATEFUL + "lifecycle:", "15:27: models.own.signature.stateful", "sequence"),
]


@pytest.mark.parametrize(("old", "new", "place", "reason"), REFUSED)
def test_state_of_one_process_is_rejected_with_workers(
    old: str, new: str, place: str, reason: str
) -> None:
    """Each problem has its position, its reason and the setting to change."""
    without = GOOD.replace("statistics: target, ", "").replace("model_control: true, ", "")
    text = (without if "stateful" in new else GOOD).replace(old, new)
    found = [str(problem) for problem in check(load_text(text)) if reason in problem.message]
    assert 1 == len(found), check(load_text(text))
    assert found[0].startswith(place)
    assert "with 'workers: 2' this" in found[0]
    assert found[0].endswith("it needs 'workers: 1'")


@pytest.mark.parametrize(("old", "new", "place", "reason"), REFUSED)
def test_state_of_one_process_is_valid_with_one_worker(
    old: str, new: str, place: str, reason: str
) -> None:
    """The same settings have no problems."""
    assert [] == check(load_text(GOOD.replace(old, new).replace("workers: 2", "workers: 1")))


@pytest.mark.parametrize(
    ("models", "messages"),
    [
        (MODEL, ["would load or unload model 'own'", "one worker's counts of model 'own'"]),
        (CACHED, ["would leave outdated replies of model 'far'"]),
    ],
)
def test_control_and_statistics_of_local_models_are_rejected(
    models: str, messages: list[str]
) -> None:
    """With workers they need upstream models without cached replies."""
    problems = [problem.message for problem in check(load_text(GOOD + models))]
    assert len(messages) == len(problems)
    for message, problem in zip(messages, problems, strict=True):
        assert message in problem


def test_workers_auto_is_checked_like_several_workers() -> None:
    """The validity of a file does not depend on the machine."""
    text = GOOD.replace("workers: 2", "workers: auto").replace('{mode: forward, keys: "*"}', "map")
    (problem,) = check(load_text(text))
    assert problem.message.startswith("with 'workers: auto' this would register a region")
