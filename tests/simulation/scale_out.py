"""What replicas cost that do not communicate, from 1 to 1,000 of them; `make plots` draws it.

What moves when endpoints come and go, what a divided limit rejects, how late the slowest calls are
when each replica sees only its own calls, and how many probes servers get. All of it is seeded.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import log10
from pathlib import Path
from typing import Final

from gateway.config.models import ProbeConfig
from gateway.routing.balancing.load_balancing import BalancingPolicy, LoadBalancer, PeakEwma
from gateway.routing.sequence_affinity import rendezvous, rendezvous_order

SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SEED: Final = 7
KEYS: Final = 2_000
ENDPOINTS: Final = 20
SERVICE_S: Final = 0.010
CALLS: Final = 20_000
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 260, 60, 56, 40
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73")
_FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"


def _endpoints(count: int) -> list[str]:
    return [f"endpoint-{number}" for number in range(count)]


def moved_share(before: int, after: int, keys: int = KEYS) -> float:
    """Return the share of sequences whose endpoint changes when the number of endpoints does."""
    old, new = (dict.fromkeys(_endpoints(size), 1.0) for size in (before, after))
    names = [f"sequence-{SEED}-{number}" for number in range(keys)]
    moved = sum(rendezvous(name, old) != rendezvous(name, new) for name in names)
    return moved / keys


def moved_models(before: int, after: int, copies: int = 1, models: int = KEYS) -> float:
    """Return the share of loads that are repeated elsewhere, for models with so many copies."""
    names = [f"model-{SEED}-{number}" for number in range(models)]
    moved = total = 0
    for name in names:
        old, new = (
            set(rendezvous_order(name, _endpoints(size))[:copies]) for size in (before, after)
        )
        moved += len(new - old)
        total += len(new)
    return moved / total


def rejected_share(replicas: int, limit: int = 10_000, load: float = 0.9) -> float:
    """Return the share of calls that a divided limit rejects although the total is below it.

    Args:
        replicas: Each has an equal part of the limit; clients choose one at random.
        limit: Calls in flight of all replicas together.
        load: Calls in flight that there are, as a share of the limit.
    """
    source = random.Random(SEED)  # noqa: S311  # a simulation
    counts = [0] * replicas
    calls = int(limit * load)
    for _ in range(calls):
        counts[source.randrange(replicas)] += 1
    return sum(max(0.0, count - limit / replicas) for count in counts) / calls


@dataclass(slots=True)
class _Seen:
    """An endpoint as one replica sees it: its own calls alone."""

    name: str
    pending: int = 0
    last_turn: int = 0
    latency: PeakEwma = field(default_factory=PeakEwma)
    weight: float = 1.0
    next_turn: float = 0.0

    def is_available(self, now: float, /) -> bool:
        """All endpoints work."""
        return now >= 0


def p99_s(replicas: int, load: float = 0.7, calls: int = CALLS) -> float:
    """Return the latency that one call in a hundred exceeds, in seconds.

    Twenty servers do one call after the other, which takes 10 ms on average. Each replica chooses
    by `least_request`, and knows only of its own calls. The traffic is the same for any number.
    """
    source = random.Random(SEED)  # noqa: S311  # a simulation
    views = [[_Seen(name) for name in _endpoints(ENDPOINTS)] for _ in range(replicas)]
    balancers = [
        LoadBalancer(BalancingPolicy.LEAST_REQUEST, draw=source.random) for _ in range(replicas)
    ]
    free_at = dict.fromkeys(_endpoints(ENDPOINTS), 0.0)
    running: list[tuple[float, int, _Seen, float]] = []
    latencies = []
    now = 0.0
    for number in range(calls):
        now += source.expovariate(load * ENDPOINTS / SERVICE_S)
        while running and running[0][0] <= now:
            end, _, seen, started = heapq.heappop(running)
            seen.pending -= 1
            seen.latency.observe(end - started, end)
        replica = source.randrange(replicas)
        chosen = balancers[replica].choose_of_two(views[replica], now)
        assert chosen is not None
        chosen.pending += 1
        end = max(now, free_at[chosen.name]) + source.expovariate(1 / SERVICE_S)
        free_at[chosen.name] = end
        heapq.heappush(running, (end, number, chosen, now))
        latencies.append(end - now)
    return sorted(latencies)[int(0.99 * calls)]


def probes_per_second(replicas: int, endpoints: int = ENDPOINTS) -> float:
    """Return how many probes all servers get in a second, with the default interval."""
    return replicas * endpoints / ProbeConfig().interval


def chart(title: str, lines: Mapping[str, Sequence[float]], most: float, unit: str) -> str:
    """Return a chart over the number of replicas, on a logarithmic axis, as SVG."""
    bottom = _HEIGHT - _BOTTOM
    x_of = (_WIDTH - _LEFT - 30) / log10(SIZES[-1])
    y_of = (bottom - _TOP) / most
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        "<style>text{font:12px sans-serif}path{fill:none;stroke-width:2}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y, label = bottom - share * most * y_of, f"{share * most:g} {unit}"
        found.append(f'<path stroke="#ddd" d="M{_LEFT},{y:.0f}H{_WIDTH - 20}"/>')
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
    for size in SIZES:
        x = _LEFT + log10(size) * x_of
        found.append(f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle">{size}</text>')
    for index, (name, values) in enumerate(lines.items()):
        points = "L".join(
            f"{_LEFT + log10(size) * x_of:.1f},{bottom - value * y_of:.1f}"
            for size, value in zip(SIZES, values, strict=True)
        )
        colour, x = _COLOURS[index], 16 + index * 230
        found.append(f'<path stroke="{colour}" d="M{points}"/>')
        found.append(f'<path stroke="{colour}" d="M{x},38h18"/>')
        found.append(f'<text x="{x + 24}" y="42">{escape(name)}</text>')
    return "".join([*found, "</svg>\n"])


def row(size: int) -> str:
    """Return the row of the table of docs/scale-out.md for a number of endpoints or replicas."""
    cells = (
        f"{size:,}",
        f"{100 * moved_share(size, size + 1):.1f} %",
        f"{100 * moved_share(size, size - 1):.1f} %" if size > 1 else "all",
        f"{100 * moved_models(size, size + 1):.1f} %",
        f"{100 * rejected_share(size):.1f} %",
        f"{1000 * p99_s(size):.0f} ms",
        f"{probes_per_second(size):,.0f}",
    )
    return f"| {' | '.join(cells)} |"


def plots() -> dict[str, str]:
    """Return the pictures of docs/scale-out.md, by name."""
    shares = {
        "sequences moved by one more": [100 * moved_share(size, size + 1) for size in SIZES],
        "models loaded again by one more": [100 * moved_models(size, size + 1) for size in SIZES],
        "rejected by a divided limit": [100 * rejected_share(size) for size in SIZES],
    }
    late = {"p99 with 20 servers at 70 %": [1000 * p99_s(size) for size in SIZES]}
    return {
        "scale-out.svg": chart("Endpoints or replicas, 1 to 1,000", shares, 100, "%"),
        "scale-out-p99.svg": chart("Replicas that choose alone, 1 to 1,000", late, 200, "ms"),
    }


def main() -> None:
    """Write the plots, and print the rows of the table of docs/scale-out.md."""
    for name, text in plots().items():
        (_FOLDER / name).write_text(text, encoding="utf-8")
    print("\n".join(row(size) for size in SIZES))


if __name__ == "__main__":
    main()
