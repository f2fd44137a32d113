"""The examples of the demo: contents of the files, and drawings of scans."""

from collections import Counter

import pytest

from gateway.cli.demo.samples import DARKEST, SIDE, Scan, draw, load_scans, load_sentences

BLANK = (0.0,) * (SIDE * SIDE)


def test_the_scans_show_each_digit_once() -> None:
    """They show the digits 0 to 9 in order."""
    assert list(range(10)) == [scan.digit for scan in load_scans()]


@pytest.mark.parametrize("scan", load_scans(), ids=lambda scan: str(scan.digit))
def test_a_scan_has_64_pixels_in_range(scan: Scan) -> None:
    """Pixels are floats from paper to full ink, and use nearly the whole range."""
    assert len(scan.pixels) == SIDE * SIDE
    assert all(type(pixel) is float for pixel in scan.pixels)
    assert min(scan.pixels) == 0
    assert 13 <= max(scan.pixels) <= DARKEST


def test_each_language_has_three_sentences() -> None:
    """The twelve sentences are different."""
    sentences = load_sentences()
    expected = {"de": 3, "en": 3, "es": 3, "fr": 3}
    assert expected == Counter(sentence.language for sentence in sentences)
    assert len({sentence.text for sentence in sentences}) == len(sentences)


def test_some_sentences_are_not_ascii() -> None:
    """They have more bytes than characters, so tests detect a lost encoding."""
    assert any(not sentence.text.isascii() for sentence in load_sentences())


def test_a_blank_scan_is_drawn_as_spaces() -> None:
    """It is eight lines of sixteen spaces."""
    assert "\n".join([" " * 16] * 8) == draw(Scan(BLANK, 0))


def test_each_fifth_of_the_range_has_a_shade() -> None:
    """The five shades range from paper to full ink, with two characters per pixel."""
    pixels = (0.0, 4.0, 8.0, 12.0, 16.0, *BLANK[5:])
    expected = "  ░░▒▒▓▓██      "
    assert expected == draw(Scan(pixels, 0)).splitlines()[0]


def test_rows_are_drawn_from_the_top() -> None:
    """The first pixel is in the upper left corner, the last one in the lower right corner."""
    lines = draw(Scan((16.0, *BLANK[2:], 16.0), 0)).split("\n")
    expected = ["██" + " " * 14, " " * 14 + "██"]
    assert expected == [lines[0], lines[-1]]


def test_the_zero_is_drawn_as_a_ring() -> None:
    """The drawing of the committed scan looks like a zero."""
    expected = [
        "    ░░▓▓▒▒      ",
        "    ▓▓██▒▒██░░  ",
        "  ░░██    ▓▓▒▒  ",
        "  ░░▓▓    ▒▒▒▒  ",
        "  ░░▒▒    ▒▒▒▒  ",
        "  ░░▓▓    ▓▓▒▒  ",
        "    ██░░▒▒▓▓    ",
        "    ▒▒▓▓▒▒      ",
    ]
    assert expected == draw(load_scans()[0]).split("\n")
