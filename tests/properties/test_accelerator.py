"""Compiled functions do the same as their Python versions, for valid and for damaged inputs."""

from __future__ import annotations

import os
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accelerator import EXTENSION, PYTHON_VERSIONS
from tests.accelerated_parts import PARTS, damaged, flipped, outcome, use_functions
from tests.unit.transports.http2.test_fast_paths import ANSWERS, CALLS, replay_pieces

compiled = pytest.importorskip(EXTENSION, reason="the extension is not built: no C compiler")

# A change of a compiled function needs a million of each: ACCELERATOR_MESSAGES=1000000.
_MESSAGES = int(os.environ.get("ACCELERATOR_MESSAGES", "30000"))
_FLIPS = 10
_SHORT = 4096


def test_every_compiled_function_is_compared() -> None:
    """The extension has each function under its Python name, and all are tested."""
    public = {name for name in vars(compiled) if callable(getattr(compiled, name))}
    assert PARTS.keys() == PYTHON_VERSIONS.keys()
    assert PARTS.keys() <= public


@pytest.mark.parametrize("name", PARTS)
def test_results_and_errors_are_the_same(name: str) -> None:
    """Both versions return the same, or raise the same error."""
    for seed in range(200):
        _compare(name, PARTS[name](Random(seed)))  # noqa: S311  # inputs of a test


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PARTS)
def test_many_results_are_the_same(name: str) -> None:
    """Both versions agree on many messages of each part, most of which differ by one bit."""
    random = Random(20)  # noqa: S311  # inputs of a test
    for _ in range(_MESSAGES // _FLIPS):
        arguments = PARTS[name](random)
        for _ in range(_FLIPS):
            _compare(name, arguments)
            arguments = flipped(random, arguments)


@given(random=st.randoms(use_true_random=False), client=st.booleans())
def test_http2_frames_are_read_the_same_by_both_builds(random: Random, client: bool) -> None:
    """Events and output of both builds are equal for any frames in any pieces."""
    messages = [sent for sent in (ANSWERS if client else CALLS).values() if len(sent) < _SHORT]
    sent = damaged(random, b"".join(random.choices(messages, k=3)), b"\0\1\4\5\x80\xff")
    cuts = sorted(random.choices(range(len(sent) + 1), k=random.randrange(6)))
    pieces = [sent[start:stop] for start, stop in pairwise([0, *cuts, len(sent)])]
    found = []
    for source in (PYTHON_VERSIONS, vars(compiled)):
        with pytest.MonkeyPatch.context() as patch:
            use_functions(source, patch)
            found.append(replay_pieces(pieces, client=client))
    assert found[0] == found[1]


def _compare(name: str, arguments: tuple[Any, ...]) -> None:
    expected = outcome(name, PYTHON_VERSIONS[name], arguments)
    assert expected == outcome(name, getattr(compiled, name), arguments), arguments
