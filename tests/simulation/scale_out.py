"""What moves when replicas are added or removed, and what a divided limit costs; `make plots`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path
from typing import Final

from gateway.routing.sequence_affinity import rendezvous

SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SEED: Final = 7
KEYS: Final = 400
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 260, 60, 56, 40
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73")
_PAGE: Final = Path(__file__).parents[2] / "docs" / "images" / "scale-out.svg"


def moved_share(before: int, after: int, keys: int = KEYS) -> float:
    """Return the share of sequences whose endpoint changes when the number of endpoints does."""
    old, new = ({f"endpoint-{n}": 1.0 for n in range(size)} for size in (before, after))
    names = [f"sequence-{SEED}-{number}" for number in range(keys)]
    moved = sum(rendezvous(name, old) != rendezvous(name, new) for name in names)
    return moved / keys


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


def chart(title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Return a chart of percentages over the number of replicas, on a logarithmic axis, as SVG."""
    bottom = _HEIGHT - _BOTTOM
    x_of = (_WIDTH - _LEFT - 30) / log10(SIZES[-1])
    y_of = (bottom - _TOP) / 100
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        "<style>text{font:12px sans-serif}path{fill:none;stroke-width:2}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for percent in (0, 25, 50, 75, 100):
        y = bottom - percent * y_of
        found.append(f'<path stroke="#ddd" d="M{_LEFT},{y:.0f}H{_WIDTH - 20}"/>')
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{percent} %</text>')
    for size in SIZES:
        x = _LEFT + log10(size) * x_of
        found.append(f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle">{size}</text>')
    for index, (name, values) in enumerate(lines.items()):
        points = "L".join(
            f"{_LEFT + log10(size) * x_of:.1f},{bottom - 100 * value * y_of:.1f}"
            for size, value in zip(SIZES, values, strict=True)
        )
        colour, x = _COLOURS[index], 16 + index * 230
        found.append(f'<path stroke="{colour}" d="M{points}"/>')
        found.append(f'<path stroke="{colour}" d="M{x},38h18"/>')
        found.append(f'<text x="{x + 24}" y="42">{escape(name)}</text>')
    return "".join([*found, "</svg>\n"])


def main() -> None:
    """Write the plot of docs/scale-out.md."""
    lines = {
        "sequences moved by one more": [moved_share(size, size + 1) for size in SIZES],
        "moved by one less": [moved_share(size, max(1, size - 1)) for size in SIZES],
        "rejected by a divided limit": [rejected_share(size) for size in SIZES],
    }
    _PAGE.write_text(chart("Endpoints or replicas, 1 to 1,000", lines), encoding="utf-8")
    for name, values in lines.items():
        print(name, [round(value, 4) for value in values])


if __name__ == "__main__":
    main()
