"""What is made of a message is bounded by its size, whatever protocol, carrier and side reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from gateway.concurrency.offload import off_loop
from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.tensors.datatypes import Datatype
from gateway.wire.heads.url_names import form_text
from gateway.wire.json.values import load_json
from tests.properties.amplified import LONG, SHORT, Memory, Seed, answered, post, small_messages
from tests.properties.registered import REGISTERED

_ROOT = Path(__file__).parents[2]


def test_small_parts_take_little_memory() -> None:
    """What once took up to a thousand times its size takes at most eight times, and 16 MiB."""
    _check(
        "mlflow.http jsonlines lines",
        "mlflow.http split: dataframe_split keys",
        "torchserve.http form escapes",
        "seldon.http form escapes",
        'seldon.http ndarray: data.ndarray list of {"a":0}',
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("codec", sorted(REGISTERED))
def test_messages_of_each_codec_that_grow_take_little_memory(codec: str) -> None:
    """Some of the messages of each codec, spread over all of them."""
    _check(codec, count=LONG, some=12)


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("codec", sorted(REGISTERED))
def test_every_message_that_grows_takes_little_memory(codec: str) -> None:
    """All messages of each codec."""
    _check(codec, count=LONG)


def _check(*names: str, count: int = SHORT, some: int = 0) -> None:
    command = [sys.executable, "-m", "tests.properties.amplified", str(count), str(some), *names]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, check=False)
    assert 0 == done.returncode, done.stdout.decode()[-4000:] + done.stderr.decode()[-2000:]


def test_every_codec_has_messages_that_grow() -> None:
    """A codec of the registry without amplified messages fails here: add a seed."""
    assert set(REGISTERED) == set(small_messages())


@pytest.mark.parametrize(
    "text",
    [
        b"a+b%31%",
        b"%",
        b"%4",
        b"%zz%41",
        b"%%41",
        b"%E2%82%AC",
        b"",
        b"%41" * 50_000,
        b"%" * 70_000,
    ],
    ids=lambda text: f"{text[:12]!r}-{len(text)}",
)
def test_form_text_is_decoded_as_by_urllib(text: bytes) -> None:
    """Escapes and plus signs are decoded as urllib does, in little memory."""
    assert unquote_to_bytes(text.replace(b"+", b" ")) == form_text(text)


@pytest.mark.parametrize("element", [b"[]", b"{}", b'"ab"', b'{"a":0}', b'{"a":[0.5]}'])
async def test_objects_of_a_text_are_reserved_or_refused(element: bytes) -> None:
    """Objects that take much are reserved first, and refused where the budget has not so much."""
    text = b"[%b]" % b",".join([element] * 200_000)
    memory = Memory()
    assert 200_000 == len(await off_loop(load_json, text, "the text"))
    assert len(text) < memory.most
    Memory(memory.most // 2)
    with pytest.raises(TooLarge, match=r"\(in_flight_bytes\)") as raised:
        await off_loop(load_json, text, "the text")
    assert "in_flight_bytes" == raised.value.limit


@pytest.mark.parametrize("text", [b"[" * 9_000_000, b"{" * 9_000_000, b"}]" * 4_000_000])
async def test_brackets_without_their_ends_need_no_memory(text: bytes) -> None:
    """Bytes that only begin like JSON were refused for the memory of lists that nobody builds."""
    memory = Memory(1 << 20)
    with pytest.raises(MalformedMessage):
        await off_loop(load_json, text, "the text")
    assert 0 == memory.most


@pytest.mark.parametrize(
    "element",
    ["{}", '{"a":[1.5,"b"]}', "[null,true,-0,1e5]", "18446744073709551616", "[" * 600 + "]" * 600],
    ids=lambda element: element[:12],
)
def test_many_objects_are_built_as_by_a_parser_at_once(element: str) -> None:
    """Texts of many objects are built in steps, with the values and the errors of any other text."""
    text = f"[{','.join([element] + ['{}'] * 150_000)}]".encode()
    assert json.loads(text) == load_json(text, "the text")
    for wrong in (b"\xef\xbb\xbf" + text, text + b"x", text[:-1], text[:-1] + b',"\xff"]'):
        with pytest.raises(MalformedMessage, match="the text is not JSON"):
            load_json(wrong, "the text")


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["tfs", "mlflow", "torchserve", "seldon", "oip"])
def test_what_bulk_takes_is_reserved_or_refused(codec: str) -> None:
    """Bulk took up to thirty times its size, and numbers of many digits held the loop for 0.2 s."""
    _check(f"{codec}.http bulk", count=LONG)


@pytest.mark.parametrize("digits", [309, 4301])
@pytest.mark.parametrize(
    "body", ['{"instances":[%s]}', '{"inputs":{"x":[-%s]}}', '{"instances":["%s"]}']
)
@pytest.mark.parametrize("datatype", [*Datatype], ids=lambda datatype: datatype.name)
async def test_integers_of_309_digits_in_rows_are_protocol_errors(
    datatype: Datatype, body: str, digits: int
) -> None:
    """TensorFlow Serving's rows answered 500 to an integer that no FP64 holds, for FP32."""
    seed = Seed("tfs.http", "digits", post("/v1/models/m:predict", body % ("9" * digits)))
    outcome = await answered(seed, datatype)
    assert outcome.startswith(("200", "400")), outcome


@pytest.mark.parametrize("datatype", [*Datatype], ids=lambda datatype: datatype.name)
async def test_a_list_in_a_cell_is_refused(datatype: Datatype) -> None:
    """A list in a cell of a table was an error of numpy, a 500."""
    for body in (
        '{"dataframe_split":{"columns":["x","y"],"data":[[1,[2]],[3,[4]]]}}',
        '{"dataframe_records":[{"x":1,"y":[2]},{"x":3,"y":4}]}',
    ):
        outcome = await answered(Seed("mlflow.http", "cell", post("/invocations", body)), datatype)
        assert outcome.startswith("400"), outcome


@pytest.mark.parametrize(
    ("codec", "path", "body"),
    [
        ("tfs.http", "/v1/models/m:predict", b'{"instances":[%b]}'),
        ("mlflow.http", "/invocations", b'{"instances":[%b]}'),
        ("torchserve.http", "/predictions/m", b"[%b]"),
        ("seldon.http", "/api/v1.0/predictions", b'{"data":{"ndarray":[%b]}}'),
    ],
)
async def test_what_users_send_in_bulk_is_served(codec: str, path: str, body: bytes) -> None:
    """Bounds of memory do not refuse 1.7 million digits, or 400,000 texts of some megabytes."""
    texts = body % b",".join([b'"some text"'] * 400_000)
    for value, datatype in (
        (body % b",".join([b"1"] * 1_700_000), Datatype.FP32),
        (texts, Datatype.BYTES),
    ):
        outcome = await answered(Seed(codec, "bulk", post(path, value)), datatype)
        assert outcome.startswith("200"), outcome
