"""The metrics page: Prometheus' text format, or OpenMetrics.

Both are written here, not by the Prometheus library, because that writes a whole page at once.

Source: Prometheus, "Exposition formats"; OpenMetrics 1.0.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from gateway.concurrency.slices import in_slices
from gateway.telemetry.families import HistogramFamily

_BOUND: Final = "le="
# From here on numbers have an exponent.
_PLAIN_INT: Final = 1_000_000
_OPEN: Final = "application/openmetrics-text"
# How Prometheus' format names a type of OpenMetrics: the ending of the name, and the type. Triton's
# counters have no `_total`, which a counter of OpenMetrics must have: there they are unknown.
_PLAIN: Final = {
    "counter": ("_total", "counter"),
    "unknown": ("", "counter"),
    "info": ("_info", "gauge"),
    "stateset": ("", "gauge"),
}


async def write_page(pieces: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return the page of families in pieces and its content type, in slices.

    Args:
        pieces: The families.
        accept: The header of the request, which chooses the format.
    """
    page = PageWriter(accept)
    async for piece in in_slices(pieces):
        page.add(piece)
    # To join many bytes needs no interpreter lock.
    return await asyncio.to_thread(page.text), page.content_type


class PageWriter:
    """Writes a page from families in pieces.

    Args:
        accept: The header of the request, which chooses the format.

    Attributes:
        content_type: That of the page.
    """

    def __init__(self, accept: str) -> None:
        _, self.content_type = choose_encoder(accept)
        self._is_open = self.content_type.startswith(_OPEN)
        self._families: dict[str, list[bytes]] = {}

    def add(self, piece: Metric) -> None:
        """Add a family, or samples of one that is on the page."""
        texts = self._families.get(piece.name)
        if texts is None:
            texts = self._families[piece.name] = [self._head(piece).encode()]
        if isinstance(piece, HistogramFamily):
            lines = [line for row in piece.rows for line in self._histogram(piece, *row)]
        else:
            lines = [self._line(sample) for sample in piece.samples]
        texts.append("".join(lines).encode())

    def text(self) -> bytes:
        """Return the page."""
        parts = [text for family in self._families.values() for text in family]
        return b"".join([*parts, b"# EOF\n"] if self._is_open else parts)

    def _head(self, family: Metric) -> str:
        name, kind, text = family.name, family.type, family.documentation
        if self._is_open:
            unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
            return f"# HELP {name} {_escaped(text)}\n# TYPE {name} {kind}\n{unit}"
        ending, kind = _PLAIN.get(kind, ("", kind))
        text = text.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {name}{ending} {text}\n# TYPE {name}{ending} {kind}\n"

    def _line(self, sample: Sample) -> str:
        exemplar = _exemplar(sample.exemplar) if self._is_open and sample.exemplar else ""
        return f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}{exemplar}\n"

    def _histogram(
        self,
        family: HistogramFamily,
        values: Sequence[str],
        numbers: Sequence[float],
        exemplars: Mapping[int, Exemplar],
    ) -> Iterator[str]:
        """Yield the lines of one histogram, whose labels differ in "le" alone."""
        name, number = family.name, ""
        labels = dict(zip(family.labels, values, strict=True))
        before = "".join([f"{each}," for each in _pairs(labels) if each < _BOUND])
        after = "".join([f",{each}" for each in _pairs(labels) if each >= _BOUND])
        for place, (bound, total) in enumerate(family.buckets(numbers)):
            number = f"{total}.0" if type(total) is int and total < _PLAIN_INT else _number(total)
            is_told = self._is_open and place in exemplars
            exemplar = _exemplar(exemplars[place]) if is_told else ""
            yield f'{name}_bucket{{{before}le="{bound}"{after}}} {number}{exemplar}\n'
        yield f"{name}_count{_labels(labels)} {number}\n"
        yield f"{name}_sum{_labels(labels)} {_number(numbers[-1])}\n"


def _labels(labels: Mapping[str, str]) -> str:
    return f"{{{','.join(_pairs(labels))}}}" if labels else ""


def _pairs(labels: Mapping[str, str]) -> list[str]:
    return [f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _exemplar(exemplar: Exemplar) -> str:
    at = "" if exemplar.timestamp is None else f" {exemplar.timestamp}"
    return f" # {_labels(exemplar.labels)} {_number(exemplar.value)}{at}"


def _number(value: float) -> str:
    found: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # the library is half typed
    return found
