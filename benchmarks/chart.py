"""The charts of a run as SVG: the cost of each peer, and curves over sizes and endpoints.

Bars are the CPU time of each peer in units of the gateway's. Their axis is logarithmic and begins
at 1, the gateway. Bars to the right cost more CPU time for each request, bars to the left less.
Curves are the CPU time of a request on two logarithmic axes. The same results give the same bytes.
The colours follow the light or dark mode of the page.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from benchmarks import machine
from benchmarks.goals import Results
from benchmarks.jobs import ENDPOINT, SIZE

SHOWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "json-grpc small": (
        "Small JSON in, gRPC out",
        ("gateway, reference", "envoy transcoder", "envoy proxy (nt)", "nginx proxy (nt)"),
    ),
    "grpc-http small": (
        "Small gRPC in, HTTP out",
        ("gateway, reference", "envoy proxy (nt)", "nginx proxy (nt)"),
    ),
    "binary-http 602KB": (
        "602 KB tensor, HTTP in and out",
        ("gateway, reference", "envoy proxy (nt)", "nginx proxy (nt)"),
    ),
    "grpc-http 602KB": (
        "602 KB tensor, gRPC in, HTTP out",
        ("gateway, reference", "envoy proxy (nt)", "nginx proxy (nt)"),
    ),
    "json-grpc 150k floats": (
        "150,528 JSON floats in, gRPC out",
        ("gateway, reference", "envoy transcoder", "envoy proxy (nt)"),
    ),
    "json-triton 150k floats": (
        "150,528 JSON floats, before a real Triton",
        ("triton itself",),
    ),
    "json-noop small": ("Small JSON, a model that does nothing", ("triton", "mlserver", "kserve")),
    "grpc-noop small": ("Small gRPC, a model that does nothing", ("triton", "mlserver", "kserve")),
}
"""Job -> its title, and the systems of which there are bars."""

_WIDTH, _LEFT, _RIGHT = 760, 190, 60
_TOP, _BOTTOM = 84, 64
_BAR, _ROW, _TITLE, _GAP = 14, 20, 22, 10
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
_NT = " (nt)"
_HEADING = "CPU time per request of others, in units of the gateway's"
_AXIS = "times the gateway's CPU time (1: the gateway itself; logarithmic)"
_CURVES = {
    SIZE: "By the size of the tensor",
    ENDPOINT: "By the number of endpoints, small",
}
_SYSTEMS = {
    "gateway": "line0",
    "envoy proxy (nt)": "line1",
    "nginx proxy (nt)": "line2",
    "direct (nt)": "line3",
}
_PANEL, _PANEL_HEIGHT, _PANEL_GAP = 290, 220, 80
_CURVES_HEADING = "CPU time per request, HTTP in and out, us (logarithmic)"
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; } .job { font-weight: 600; } .small { fill: #59636e; }
.grid { stroke: #d1d9e0; } .one { stroke: #1f2328; stroke-width: 1.5; }
.peer { fill: #2f6fb2; } .nt { fill: #a9b4bf; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #9198a1; } .grid { stroke: #3d444d; }
.one { stroke: #e6edf3; } .peer { fill: #5aa0e6; } .nt { fill: #6b7683; } }
"""
_CURVE_STYLE = """
.curve { fill: none; stroke-width: 2; } .line0 { stroke: #2f6fb2; } .line1 { stroke: #c2662d; }
.line2 { stroke: #3a8a4d; } .line3 { stroke: #a9b4bf; }
@media (prefers-color-scheme: dark) {
.line0 { stroke: #5aa0e6; } .line1 { stroke: #e59a63; } .line2 { stroke: #6cc183; }
.line3 { stroke: #6b7683; } }
"""


@dataclass(frozen=True)
class Bar:
    """The cost of one system in units of the gateway's."""

    system: str
    ratio: float


def bars(sections: Mapping[str, Any]) -> dict[str, list[Bar]]:
    """Return the bars of each measured job, by its title."""
    results = Results(sections)
    found: dict[str, list[Bar]] = {}
    for job, (title, systems) in SHOWN.items():
        ratios = {system: results.times(job, system) for system in systems}
        group = [Bar(system, ratio) for system, ratio in ratios.items() if ratio]
        if group:
            found[title] = group
    return found


def svg(sections: Mapping[str, Any]) -> str:
    """Return the chart.

    Raises:
        ValueError: The run has no job that the chart shows.
    """
    groups = bars(sections)
    if not groups:
        raise ValueError("the results have no job that the chart shows")
    axis = _Axis([bar.ratio for group in groups.values() for bar in group])
    lines = sum(len(group) for group in groups.values())
    height = _TOP + len(groups) * (_TITLE + _GAP) + lines * _ROW + _BOTTOM
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f"<style>{_STYLE}</style>",
        f'<text id="title" class="title" x="16" y="24">{_HEADING}</text>',
        *_legend(),
        *axis.drawn(height),
        *_groups(groups, axis),
        _middle(_WIDTH / 2, height - 10, machine.caption(sections["jobs"]["about"])),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Axis:
    """The position of a ratio.

    Args:
        ratios: All ratios of the chart.
    """

    def __init__(self, ratios: Sequence[float]) -> None:
        least, most = min(0.5, *ratios), max(2.0, *ratios)
        self.ticks = [
            tick
            for tick in _TICKS
            if tick >= max((t for t in _TICKS if t <= least), default=_TICKS[0])
            and tick <= min((t for t in _TICKS if t >= most), default=_TICKS[-1])
        ]
        self._from = math.log(min(least, self.ticks[0]))
        self._to = math.log(max(most, self.ticks[-1]))

    def x(self, ratio: float) -> float:
        share = (math.log(ratio) - self._from) / (self._to - self._from)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def drawn(self, height: int) -> Iterator[str]:
        top, bottom = _TOP - 8, height - _BOTTOM + 4
        for tick in self.ticks:
            x, kind = f"{self.x(tick):.1f}", "one" if tick == 1 else "grid"
            yield f'<line class="{kind}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
            yield _middle(self.x(tick), bottom + 16, f"{tick:g}")
        yield _middle((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 34, _AXIS)


def _middle(x: float, y: int, text: str) -> str:
    return f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{y}">{escape(text)}</text>'


def _legend() -> Iterator[str]:
    words = (("peer", "does the same work"), ("nt", "passes bytes on, does not translate (nt)"))
    x = 16
    for kind, text in words:
        yield f'<rect class="{kind}" x="{x}" y="38" width="12" height="12" rx="2"/>'
        yield f'<text class="small" x="{x + 18}" y="48">{text}</text>'
        x += 160


def _groups(groups: Mapping[str, Sequence[Bar]], axis: _Axis) -> Iterator[str]:
    y = _TOP
    for title, group in groups.items():
        y += _TITLE
        yield f'<text class="job" x="16" y="{y - 7}">{escape(title)}</text>'
        for bar in group:
            yield from _bar(bar, axis, y)
            y += _ROW
        y += _GAP


def _bar(bar: Bar, axis: _Axis, y: int) -> Iterator[str]:
    one, x = axis.x(1), axis.x(bar.ratio)
    kind = "nt" if bar.system.endswith(_NT) else "peer"
    left, right = min(one, x), max(one, x)
    base = y + _BAR - 3
    yield f'<text text-anchor="end" x="{_LEFT - 10}" y="{base}">{escape(bar.system)}</text>'
    yield (
        f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" '
        f'height="{_BAR}" rx="2"/>'
    )
    number = f"{bar.ratio:.0f}" if bar.ratio >= 10 else f"{bar.ratio:.2g}"
    yield f'<text x="{right + 5:.1f}" y="{base}">{number}</text>'


def points(sections: Mapping[str, Any], curve: str) -> dict[str, list[tuple[str, float]]]:
    """Return the labels and CPU times of the jobs of a curve, us, by system."""
    found: dict[str, list[tuple[str, float]]] = {}
    for row in sections["jobs"]["rows"]:
        name, _, label = row["job"].partition(" ")
        if name == curve and row["system"] in _SYSTEMS and not row["errors"]:
            found.setdefault(row["system"], []).append((label, row["cpu_us"]))
    return found


def curves(sections: Mapping[str, Any]) -> str | None:
    """Return the chart of the curves; None for a run without their jobs."""
    found = {name: points(sections, name) for name in _CURVES}
    if not any(found.values()):
        return None
    height = _TOP + _PANEL_HEIGHT + _BOTTOM
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f"<style>{_STYLE}{_CURVE_STYLE}</style>",
        f'<text id="title" class="title" x="16" y="24">{_CURVES_HEADING}</text>',
    ]
    for index, (system, kind) in enumerate(_SYSTEMS.items()):
        x = 16 + 160 * index
        parts.append(f'<line class="curve {kind}" x1="{x}" x2="{x + 18}" y1="44" y2="44"/>')
        parts.append(f'<text class="small" x="{x + 24}" y="48">{escape(system)}</text>')
    for index, (name, lines) in enumerate(found.items()):
        parts += _panel(64 + index * (_PANEL + _PANEL_GAP), _CURVES[name], lines)
    parts.append(_middle(_WIDTH / 2, height - 10, machine.caption(sections["jobs"]["about"])))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: int, title: str, lines: Mapping[str, Sequence[tuple[str, float]]]) -> list[str]:
    """Return one diagram; the points of all systems stand at the same labels."""
    if not lines:
        return []
    top, bottom = _TOP + 14, _TOP + _PANEL_HEIGHT
    labels = list(dict.fromkeys(label for line in lines.values() for label, _ in line))
    times = [time for line in lines.values() for _, time in line]
    least, most = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    most = max(most, least + 1)

    def y(time: float) -> float:
        return bottom - (math.log10(time) - least) / (most - least) * (bottom - top)

    step = _PANEL / max(1, len(labels) - 1)
    at = {label: left + index * step for index, label in enumerate(labels)}
    parts = [f'<text class="job" x="{left}" y="{_TOP}">{escape(title)}</text>']
    for power in range(least, most + 1):
        place = f"{y(10.0**power):.1f}"
        parts.append(
            f'<line class="grid" x1="{left}" x2="{left + _PANEL}" y1="{place}" y2="{place}"/>'
        )
        parts.append(
            f'<text class="small" text-anchor="end" x="{left - 6}" y="{place}">{10**power:,}</text>'
        )
    parts += [_middle(x, bottom + 18, label) for label, x in at.items()]
    for system, line in lines.items():
        places = " ".join(f"{at[label]:.1f},{y(time):.1f}" for label, time in line)
        parts.append(f'<polyline class="curve {_SYSTEMS[system]}" points="{places}"/>')
    return parts
