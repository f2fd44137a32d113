"""The drawings of a report, as elements of SVG: agreement over time, histograms, values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from gateway.cli.report.blocks import element
from gateway.migration.compare.tensors import HISTOGRAM_FIRST

_WIDTH: Final = 800.0
_HEIGHT: Final = 200.0
_LEFT: Final = 60.0
_BOTTOM: Final = 24.0
_TOP: Final = 12.0


@dataclass(frozen=True, slots=True)
class AgreementPoint:
    """The calls of a part of the time.

    Attributes:
        label: Its start.
        agreement: Share of the calls that agree.
        low: Lower bound of this share.
        high: Upper bound.
    """

    label: str
    agreement: float
    low: float
    high: float


def agreement_plot(points: Sequence[AgreementPoint]) -> Element:
    """Return the agreement over time, with its band; *points* is not empty."""
    least = min(point.low for point in points)
    xs = [_x(number, len(points)) for number in range(len(points))]
    highs = [(x, _y(point.high, least, 1.0)) for x, point in zip(xs, points, strict=True)]
    lows = [(x, _y(point.low, least, 1.0)) for x, point in zip(xs, points, strict=True)]
    line = [(x, _y(point.agreement, least, 1.0)) for x, point in zip(xs, points, strict=True)]
    return _image(
        "Agreement over time",
        *_scale(f"{least:.1%}", "100%", points[0].label, points[-1].label),
        element("polygon", class_="band", points=_path([*highs, *reversed(lows)])),
        element("polyline", class_="new", points=_path(line)),
        *(_dot(x, y) for x, y in line),
    )


def histogram_plot(counts: Sequence[int], title: str) -> Element:
    """Return the number of elements by the decimal exponent of their absolute error."""
    most = max(1, *counts)
    step = (_WIDTH - _LEFT) / len(counts)
    bars = []
    for number, count in enumerate(counts):
        top = _y(count, 0.0, most)
        left, height = _LEFT + number * step + 2, _HEIGHT - _BOTTOM - top
        bars.append(_rectangle(left, top, step - 4, height))
        label = f"1e{HISTOGRAM_FIRST + number}"
        bars.append(_text(left + step / 2, _HEIGHT - 8, label, "middle"))
    return _image(title, *_scale("0", str(most), "", ""), *bars)


def values_plot(old: Sequence[float], new: Sequence[float], title: str) -> Element:
    """Return the elements of two outputs, or of one if *new* is empty; all are finite."""
    both = [*old, *new]
    least, most = min(both), max(both)
    lines = [
        element(
            "polyline",
            class_=kind,
            points=_path(
                [(_x(place, len(row)), _y(it, least, most)) for place, it in enumerate(row)]
            ),
        )
        for kind, row in (("old", old), ("new", new))
        if row
    ]
    scale = _scale(f"{least:.4g}", f"{most:.4g}", "0", str(len(old) - 1))
    return _image(title, *scale, *lines)


def _x(number: int, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - 10) * (number / (count - 1) if count > 1 else 0.5)


def _y(value: float, least: float, most: float) -> float:
    share = (value - least) / (most - least) if most > least else 0.5
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _image(title: str, *children: Element) -> Element:
    box = f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"
    return element("svg", element("title", title), *children, viewBox=box, role="img")


def _scale(low: str, high: str, first: str, last: str) -> list[Element]:
    """Return the axes, with the labels of their ends."""
    bottom = _HEIGHT - _BOTTOM
    path = _path([(_LEFT, _TOP), (_LEFT, bottom), (_WIDTH, bottom)])
    return [
        element("polyline", class_="axis", fill="none", points=path),
        _text(_LEFT - 6, bottom, low, "end"),
        _text(_LEFT - 6, _TOP + 8, high, "end"),
        _text(_LEFT, _HEIGHT - 8, first, "start"),
        _text(_WIDTH, _HEIGHT - 8, last, "end"),
    ]


def _text(x: float, y: float, text: str, anchor: str) -> Element:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _rectangle(x: float, y: float, width: float, height: float) -> Element:
    size = {"width": f"{width:.1f}", "height": f"{height:.1f}"}
    return element("rect", class_="bar", x=f"{x:.1f}", y=f"{y:.1f}", **size)


def _dot(x: float, y: float) -> Element:
    return element("circle", class_="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2")
