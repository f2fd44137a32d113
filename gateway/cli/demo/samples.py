"""Reads the inputs of the demo models, scans of digits and sentences, and draws scans as text.

`demo/train.py` selected them by a fixed rule from the held-out data, independent of the models'
predictions.
"""

import json
import zlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, TypedDict

SIDE: Final = 8
"""Pixels along one edge of a scan."""

DARKEST: Final = 16
"""The greatest value of a pixel: all ink.  The least is 0: paper."""

_SHADES: Final = " ░▒▓█"


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan of a handwritten digit.

    Attributes:
        pixels: SIDE * SIDE values from 0 (paper) to DARKEST (ink), row by row from the top: the
            models' input `X`, shape [1, 64], without the batch axis.
        digit: The digit that was written, 0 to 9.

    Source: Optical Recognition of Handwritten Digits (UCI), as `sklearn.datasets.load_digits`.
    """

    pixels: tuple[float, ...]
    digit: int


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence.

    Attributes:
        text: The sentence, one element of the input `text` of the model `language`.
        language: Its language, `de`, `en`, `es` or `fr` (ISO 639-1).
    """

    text: str
    language: str


class _ScanEntry(TypedDict):
    digit: int
    pixels: list[int]


class _SentenceEntry(TypedDict):
    language: str
    text: str


def load_scans() -> tuple[Scan, ...]:
    """Read one held-out scan of each digit, from 0 to 9."""
    entries: list[_ScanEntry] = json.loads(_text("scans.json"))
    return tuple(Scan(tuple(map(float, entry["pixels"])), entry["digit"]) for entry in entries)


def load_held_out() -> tuple[Scan, ...]:
    """Read all 450 held-out scans, every fourth of the source, in its order."""
    data = zlib.decompress((files("gateway.cli.demo") / "held_out.bin").read_bytes())
    count = len(data) // (1 + SIDE * SIDE)
    pixels = data[count:]
    size = SIDE * SIDE
    return tuple(
        Scan(tuple(map(float, pixels[row * size : (row + 1) * size])), data[row])
        for row in range(count)
    )


def load_sentences() -> tuple[Sentence, ...]:
    """Read held-out sentences, three in each language, ordered by language."""
    entries: list[_SentenceEntry] = json.loads(_text("sentences.json"))
    return tuple(Sentence(entry["text"], entry["language"]) for entry in entries)


def draw(scan: Scan) -> str:
    """Return *scan* as SIDE lines of plain text, each 2 * SIDE characters wide.

    A pixel is two characters wide, which is nearly square in a terminal, in one of five shades.
    The text has no escape sequences and no newline at the end.
    """
    rows = (scan.pixels[start : start + SIDE] for start in range(0, SIDE * SIDE, SIDE))
    return "\n".join("".join(2 * _shade(pixel) for pixel in row) for row in rows)


def _shade(pixel: float) -> str:
    return _SHADES[round(pixel / DARKEST * (len(_SHADES) - 1))]


def _text(name: str) -> str:
    return files("gateway.cli.demo").joinpath(name).read_text(encoding="utf-8")
