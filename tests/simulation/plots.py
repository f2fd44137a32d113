"""Writes the plots of docs/resilience.md: `python -m tests.simulation.plots`."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

import structlog

from gateway.policies.limits.adaptive.overload import OverloadLimit
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryRules
from tests.simulation.test_failures import EVERYTHING, Replicas, hang, heal, slow_down
from tests.simulation.virtual_time import ModelServer, Outcome, Traffic, good, percentile, simulate

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 260, 60, 56, 40
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73")
_STEP_S: Final = 0.5

Line = Sequence[tuple[float, float]]
"""Points of time in seconds and value."""


def line_chart(title: str, unit: str, lines: Mapping[str, Line], most: float) -> str:
    """Return a chart as SVG.

    Args:
        title: Above the chart.
        unit: Of the values.
        lines: By their names in the legend; at most three.
        most: The largest value that is shown.
    """
    end = max(at for line in lines.values() for at, _ in line)
    x_of = (_WIDTH - _LEFT - 20) / end
    y_of = (_HEIGHT - _TOP - _BOTTOM) / most
    bottom = _HEIGHT - _BOTTOM
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        "<style>text{font:12px sans-serif}path{fill:none;stroke-width:2}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - share * most * y_of
        found.append(f'<path stroke="#ddd" d="M{_LEFT},{y:.0f}H{_WIDTH - 20}"/>')
        label = f"{share * most:g}"
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
    for second in range(0, int(end) + 2, 2):
        x = _LEFT + second * x_of
        found.append(f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle">{second} s</text>')
    found.append(f'<text x="16" y="{_TOP - 8}">{escape(unit)}</text>')
    for index, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[index]
        points = "L".join(
            f"{_LEFT + at * x_of:.1f},{bottom - min(value, most) * y_of:.1f}" for at, value in line
        )
        found.append(f'<path stroke="{colour}" d="M{points}"/>')
        x = _LEFT + 90 + index * 210
        found.append(f'<rect x="{x}" y="34" width="12" height="4" fill="{colour}"/>')
        found.append(f'<text x="{x + 18}" y="40">{escape(name)}</text>')
    return "\n".join([*found, "</svg>", ""])


def series(traffic: Traffic, end: float, value: Callable[[list[Outcome]], float]) -> Line:
    """Return a value of the calls that began in each half second."""
    steps = [step * _STEP_S for step in range(int(end / _STEP_S))]
    return [(at, value(traffic.between(at, at + _STEP_S))) for at in steps]


def success_percent(calls: list[Outcome]) -> float:
    """Return the percentage of calls that had a reply."""
    return 100 * len(good(calls)) / max(1, len(calls))


def p99_ms(calls: list[Outcome]) -> float:
    """Return the 99th percentile of the latencies of calls that had a reply."""
    served = good(calls)
    return 1e3 * percentile(served, 99) if served else 0.0


def burst(rules: RetryRules) -> Replicas:
    """Return what a burst of 1.5 times the capacity, from second 3 to 5, left behind."""

    async def run() -> Replicas:
        replicas = Replicas(
            2,
            random.Random(3),  # noqa: S311
            rules=rules,
            timeout_s=0.5,
            attempt_timeout_s=0.1,
        )
        for load, seconds in ((0.7, 3), (1.5, 2), (0.7, 15)):
            await replicas.traffic.run(load * replicas.capacity, seconds)
        return replicas

    return simulate(run)


def one_bad_replica(fault: Callable[[ModelServer], None]) -> Replicas:
    """Return what a fault of one of three replicas, from second 4 to 10, cost."""

    async def run() -> Replicas:
        replicas = Replicas(3, random.Random(1))  # noqa: S311
        await replicas.traffic.run(90, 4)
        fault(replicas.servers[0])
        await replicas.traffic.run(90, 6)
        heal(replicas.servers[0])
        await replicas.traffic.run(90, 10)
        return replicas

    return simulate(run)


def overload(*, is_adaptive: bool) -> Traffic:
    """Return the calls of three times the capacity of a server, from second 6 to 15."""
    draw = random.Random(1)  # noqa: S311
    workers, service_s = 4, 0.04

    async def run() -> Traffic:
        clock = asyncio.get_running_loop().time
        server = ModelServer(workers, service_s, draw)
        adaptive = OverloadLimit(server, clock=clock, draw=draw.random)
        inner = adaptive if is_adaptive else server
        traffic = Traffic(CallLimits(inner, 2.0, clock=clock), draw)
        for load, seconds in ((0.5, 6), (3, 9), (0.5, 5)):
            await traffic.run(load * workers / service_s, seconds)
        return traffic

    return simulate(run)


def main() -> None:
    """Run the simulations, print the load of retries, and write the plots."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    budgeted = burst(RetryRules(reasons=EVERYTHING, attempts=5))
    unbounded = burst(RetryRules(reasons=EVERYTHING, attempts=5, ratio=1.0, least=1_000_000))
    for name, each in (("budget", budgeted), ("no budget", unbounded)):
        print(f"{name}: {each.received / len(each.traffic.outcomes):.2f} attempts for each call")
    bad = {
        name: one_bad_replica(fault) for name, fault in (("hangs", hang), ("50x slower", slow_down))
    }
    adaptive, plain = overload(is_adaptive=True), overload(is_adaptive=False)
    charts = {
        "retries": line_chart(
            "A burst of 1.5 times the capacity from second 3 to 5, with retries of timeouts",
            "answered, %",
            {
                "retry budget of 20 %": series(budgeted.traffic, 20, success_percent),
                "no budget": series(unbounded.traffic, 20, success_percent),
            },
            100,
        ),
        "ejection": line_chart(
            "One of three replicas is bad from second 4 to 10",
            "p99, ms",
            {name: series(each.traffic, 20, p99_ms) for name, each in bad.items()},
            600,
        ),
        "overload": line_chart(
            "Three times the capacity from second 6 to 15: latency of accepted calls",
            "p99, ms",
            {
                "adaptive_concurrency": series(adaptive, 20, p99_ms),
                "no limit": series(plain, 20, p99_ms),
            },
            2000,
        ),
    }
    for name, text in charts.items():
        (FOLDER / f"resilience-{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
