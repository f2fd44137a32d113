"""Which calls of a migration are sampled for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway.config.load import load_text
from gateway.ir.calls import InferRequest
from gateway.ir.context import CallSequence, Client, Context, ModelRef
from gateway.ir.tensors.tensor import array_tensor
from gateway.migration.captures.sampling import SHADOW_HEADER
from gateway.migration.mirror.sampling import MigrationSampler, SamplingDecision
from gateway.migration.settings import MIGRATIONS, MigrationConfig
from tests.fakes import FakeClock

FILE = """version: 1
listeners: [{{http: 0}}]
upstreams: {{a: {{url: "http://h:1"}}, b: {{url: "http://h:2"}}}}
routes: [{{name: r, targets: [{{upstream: a}}, {{upstream: b, weight: 0}}]}}]
migrations: {{m: {{route: r, old: a, new: b, {keys}}}}}
"""


def config(keys: str) -> MigrationConfig:
    return MIGRATIONS.of(load_text(FILE.format(keys=keys)).config)["m"]


def call(number: int, sequence: CallSequence | None = None, **context: Any) -> InferRequest:
    return InferRequest(
        model=ModelRef("m"),
        context=Context(request_id=f"r{number}", **context),
        inputs=(array_tensor("x", np.zeros((1, 4), np.float32)),),
        sequence=sequence,
    )


def choices(sampler: MigrationSampler, calls: list[InferRequest]) -> list[SamplingDecision]:
    return [sampler.choose(each, each.context) for each in calls]


def test_the_same_calls_are_sampled_everywhere() -> None:
    """Request id and migration name decide; the share is close to the configured one."""
    keys = "sample: {percent: 10, first: 0, per_second: 1000000}"
    calls = [call(number) for number in range(5000)]
    one = choices(MigrationSampler("m", config(keys)), calls)
    assert one == choices(MigrationSampler("m", config(keys)), calls)
    assert one != choices(MigrationSampler("other", config(keys)), calls)
    assert 400 < one.count(SamplingDecision.YES) < 600


def test_a_part_of_the_sampled_calls_measures_noise() -> None:
    """Noise shares the draw, so its calls are always sampled."""
    keys = "sample: {percent: 50, first: 0, per_second: 1000000}, noise: {percent: 20}"
    found = choices(MigrationSampler("m", config(keys)), [call(number) for number in range(5000)])
    assert 400 < found.count(SamplingDecision.NOISE) < 600
    assert 1800 < found.count(SamplingDecision.YES) < 2200


def test_the_first_calls_of_each_caller_are_sampled() -> None:
    """A caller is a client, a protocol, a model and a signature without the batch axis."""
    sampler = MigrationSampler("m", config("sample: {percent: 0.0001, first: 3}"))
    for client in ("10.0.0.1", "10.0.0.2"):
        calls = [call(number, client=Client(client)) for number in range(10)]
        assert choices(sampler, calls) == [SamplingDecision.YES] * 3 + [SamplingDecision.NO] * 7
    assert sampler.counts.sampled == 6


def test_calls_above_the_rate_are_dropped() -> None:
    """A token bucket of one second rejects the rest, which counts as sampled."""
    clock = FakeClock()
    sampler = MigrationSampler("m", config("sample: {percent: 100, per_second: 5}"), clock=clock)
    calls = [call(number) for number in range(8)]
    assert choices(sampler, calls) == [SamplingDecision.YES] * 5 + [SamplingDecision.RATE] * 3
    clock.advance(0.5)
    assert choices(sampler, calls[:3]) == [SamplingDecision.YES] * 2 + [SamplingDecision.RATE]
    assert sampler.counts.sampled == 11


def test_shadow_calls_are_never_sampled() -> None:
    """A call with the header of shadow calls is not even counted."""
    sampler = MigrationSampler("m", config("sample: {percent: 100}"))
    shadow = call(1, metadata=((SHADOW_HEADER, "1"),))
    assert choices(sampler, [shadow]) == [SamplingDecision.NO]
    assert sampler.counts.sampled == 0


def test_sequences_are_skipped_without_whole() -> None:
    """`whole` samples a sequence until one of its calls is lost, and from its next start."""
    steps = [
        call(1, CallSequence(7, start=True)),
        call(2, CallSequence(7)),
        call(3, CallSequence(7)),
        call(4, CallSequence(7, start=True)),
    ]
    skipping = MigrationSampler("m", config("sample: {percent: 100}"))
    assert choices(skipping, steps) == [SamplingDecision.SEQUENCE] * 4
    taking = MigrationSampler("m", config("sample: {percent: 100}, mirror: {sequences: whole}"))
    assert choices(taking, steps[:2]) == [SamplingDecision.YES] * 2
    taking.lost(steps[1])
    assert choices(taking, steps[2:]) == [SamplingDecision.SEQUENCE, SamplingDecision.YES]


def test_a_sequence_is_sampled_completely_or_not_at_all() -> None:
    """All calls of a sequence have one draw, whatever their request ids."""
    keys = "sample: {percent: 30, first: 20}, mirror: {sequences: whole}"
    sampler = MigrationSampler("m", config(keys))
    kinds = set()
    for number in range(1, 50):
        calls = [
            call(100 * number + step, CallSequence(number, start=not step)) for step in range(5)
        ]
        found = set(choices(sampler, calls))
        assert len(found) == 1
        kinds |= found
    assert kinds == {SamplingDecision.YES, SamplingDecision.NO}
