"""FP32's largest value in JSON."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from google.protobuf import json_format

from gateway.schema import grps_pb2 as pb
from gateway.wire.json.floats import array_json, dump_exact

LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            np.array([LARGEST, -LARGEST], np.float32),
            b"[3.4028234663852886e38,-3.4028234663852886e38]",
        ),
        (np.array([[0.1], [LARGEST]], np.float32), b"[[0.1],[3.4028234663852886e38]]"),
        ({"a": [LARGEST, "NaN", 1]}, b'{"a":[3.4028234663852886e38,"NaN",1]}'),
        (np.array([0.1, 1e38], np.float32), b"[0.1,1e+38]"),
        ([3.4028235e38, 0.1], b"[3.4028235e+38,0.1]"),
        (np.array([3.4028235e38, 0.1]), b"[3.4028235e+38,0.1]"),
    ],
)
def test_only_the_largest_value_has_all_its_digits(document: object, text: bytes) -> None:
    """Other values, and doubles of the same digits, keep their shortest text."""
    assert text == dump_exact(document)


def test_text_of_the_largest_value_occurs_in_no_other_value() -> None:
    """Arrays, such as masks of the lowest value, are corrected as text, in a tenth of the time."""
    bits = np.random.default_rng(7).integers(0, 1 << 32, 50_000, np.uint32)
    near = np.frombuffer(
        (LARGEST.view(np.uint32) - np.arange(1000, dtype=np.uint32)).tobytes(), "<f4"
    )
    values = np.concatenate([bits.view(np.float32), near, -near])
    values = values[np.isfinite(values)]
    texts = dump_exact(values)[1:-1].split(b",")
    assert [float(each) for each in values] == [float(np.float32(text)) for text in texts]
    long = [text for text in texts if text.strip(b"-") == b"3.4028234663852886e38"]
    assert np.count_nonzero(np.abs(values) == LARGEST) == len(long) >= 2


def test_protobuf_reads_the_largest_value() -> None:
    """A Python server of grps accepts the written text, and rejects the shortest text."""
    shortest = orjson.dumps(np.array([LARGEST]), None, orjson.OPT_SERIALIZE_NUMPY).decode()
    with pytest.raises(json_format.ParseError, match="too large"):
        json_format.Parse(f'{{"flat_float32": {shortest}}}', pb.GenericTensor())
    text = dump_exact(np.array([LARGEST, -LARGEST])).decode()
    found = json_format.Parse(f'{{"flat_float32": {text}}}', pb.GenericTensor())
    assert [LARGEST, -LARGEST] == list(found.flat_float32)


@pytest.mark.parametrize(
    "shape", [(300_000,), (300_000, 1), (1, 300_000), (3, 100_000), (2, 3, 50_000), (50_000, 3, 2)]
)
def test_long_arrays_are_written_as_short_ones(shape: tuple[int, ...]) -> None:
    """The pieces of a long array are joined to the text of the whole, whatever its shape."""
    array = np.arange(300_000, dtype=np.float32).reshape(shape)
    array.reshape(-1)[::7] = LARGEST
    assert array_json(array) == dump_exact(array)
