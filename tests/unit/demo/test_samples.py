"""The examples of the demo: what the files hold and how a scan is drawn."""

from collections import Counter

import pytest

from gateway.demo.samples import DARKEST, SIDE, Scan, draw, load_scans, load_sentences

BLANK = (0.0,) * (SIDE * SIDE)


def test_there_is_one_scan_of_each_digit() -> None:
    """The scans show the digits 0 to 9 in order, each once."""
    assert list(range(10)) == [scan.digit for scan in load_scans()]


@pytest.mark.parametrize("scan", load_scans(), ids=lambda scan: str(scan.digit))
def test_scan_has_64_pixels_in_range(scan: Scan) -> None:
    """A scan is 64 floats between paper and all ink, and uses both ends or nearly so."""
    assert len(scan.pixels) == SIDE * SIDE
    assert all(type(pixel) is float for pixel in scan.pixels)
    assert min(scan.pixels) == 0
    assert 13 <= max(scan.pixels) <= DARKEST


def test_there_are_three_sentences_in_each_language() -> None:
    """The sentences are twelve different ones, three for each language the model knows."""
    sentences = load_sentences()
    expected = {"de": 3, "en": 3, "es": 3, "fr": 3}
    assert expected == Counter(sentence.language for sentence in sentences)
    assert len({sentence.text for sentence in sentences}) == len(sentences)


def test_sentences_hold_letters_beyond_ascii() -> None:
    """Some sentences need more bytes than characters, so that a lost encoding shows."""
    assert any(not sentence.text.isascii() for sentence in load_sentences())


def test_blank_scan_is_drawn_as_spaces() -> None:
    """A scan without ink is eight lines of sixteen spaces."""
    assert "\n".join([" " * 16] * 8) == draw(Scan(BLANK, 0))


def test_each_fifth_of_the_range_has_its_shade() -> None:
    """The five shades follow one another from paper to all ink, two characters a pixel."""
    pixels = (0.0, 4.0, 8.0, 12.0, 16.0, *BLANK[5:])
    expected = "  ░░▒▒▓▓██      "
    assert expected == draw(Scan(pixels, 0)).splitlines()[0]


def test_rows_are_drawn_from_the_top() -> None:
    """The first pixel is in the upper left corner, the last in the lower right one."""
    lines = draw(Scan((16.0, *BLANK[2:], 16.0), 0)).split("\n")
    expected = ["██" + " " * 14, " " * 14 + "██"]
    assert expected == [lines[0], lines[-1]]


def test_zero_is_drawn_as_a_ring() -> None:
    """The committed zero looks like one."""
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
