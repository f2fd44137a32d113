"""What clients of MLflow and of SageMaker send and get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidOutput
from gateway.ir.tensors.tensor import items_tensor
from gateway.ir.values.untyped import RowsForm
from gateway.protocols.mlflow.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest
from tests.unit.protocols.mlflow.models import answers, post

JSON = ("Content-Type", "application/json")
CSV = ("Content-Type", "text/csv")
LINES = ("Content-Type", "application/jsonlines")
FRAME = '{"inputs": {"a": [1.5], "b": [2], "s": ["x"]}}'


async def only(model: str, wire: HttpRequest, **options: Any) -> tuple[int, bytes, Headers]:
    (response,) = await answers(model, wire, options)
    return response.status, bytes(response.view), response.headers


async def test_without_a_model_the_setting_is_named() -> None:
    """The status is 404, and the text says what to configure."""
    status, body, _ = await only("", post('{"inputs": [1]}'))
    assert status == 404
    assert json.loads(body)["error_code"] == "RESOURCE_DOES_NOT_EXIST"
    assert "default_model" in json.loads(body)["message"]


@pytest.mark.parametrize("path", ["/models", "/models/0a1b", "/models/0a1b/invoke"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_models_are_not_loaded_by_a_clients_word(method: str, path: str) -> None:
    """The text names the setting, and the body is not read."""
    status, body, _ = await only("digits", HttpRequest(method, path, body=(b"\xff",)))
    assert status == 404
    assert "multi_model" in json.loads(body)["message"]


async def test_a_path_below_the_prefix_names_its_model() -> None:
    """Without the option there is no such path."""
    wire = post(FRAME, JSON, path="/serving-endpoints/frame/invocations")
    assert (await only("", wire))[0] == 404
    status, body, _ = await only("frame", wire, default_model="other", prefix="/serving-endpoints")
    assert (status, json.loads(body)) == (200, {"predictions": {"total": [3.5], "text": ["x"]}})


@pytest.mark.parametrize(
    ("body", "options"),
    [('a,b,s\n1.5,2,"x,\n""y"""\n', {}), ('1.5,2,"x,\n""y"""\r\n', {"csv_header": False})],
)
async def test_csv_has_a_header_line_or_not(body: str, options: dict[str, Any]) -> None:
    """Fields may be quoted; without a header the columns are numbered."""
    status, found, _ = await only("frame", post(body, CSV), **options)
    if options:
        assert status == 400
        assert "needs input 'a', the request has '0', '1', '2'" in json.loads(found)["message"]
    else:
        assert json.loads(found) == {"predictions": {"total": [3.5], "text": ['x,\n"y"']}}


async def test_csv_without_a_header_is_a_matrix() -> None:
    """SageMaker's own algorithms send it so."""
    body = "\n".join([",".join(["0.5"] * 64)] * 2)
    status, found, headers = await only(
        "digits", post(body, CSV, ("Accept", "text/csv")), csv_header=False
    )
    assert (200, b"32.0\n32.0\n") == (status, found)
    assert headers.get("content-type") == "text/csv"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("a,b,s\nq,2,x\n", "line 2, column 'a' is 'q': expected a number"),
        ("a,b,s\n1,2,x\n1,2.5,x\n", "line 3, column 'b' is '2.5': expected an integer"),
        ("a,b,s\n1,,x\n", "line 2, column 'b' is null"),
        ("a,b,s\n1,2\n", "line 2 has 2 values: expected 3"),
        ("a,a\n", "has 'a' twice"),
        ("", "the body is empty"),
        ('"a', "the body is not CSV"),
    ],
)
async def test_wrong_csv_is_refused_with_its_line(body: str, text: str) -> None:
    """Each status is 400, and the error says where the value stands."""
    status, found, _ = await only("frame", post(body, CSV))
    assert status == 400
    assert text in json.loads(found)["message"]


async def test_each_line_of_json_is_a_row() -> None:
    """The response has one line for each."""
    row = json.dumps([0.5] * 64)
    status, body, headers = await only("digits", post(f"{row}\n{row}\n", LINES))
    assert status == 200
    assert headers.get("content-type") == "application/jsonlines"
    assert [json.loads(line) for line in body.splitlines()] == [{"predictions": 32.0}] * 2
    status, body, _ = await only("digits", post(f"{row}\n1],[1\n", LINES))
    assert status == 400
    assert "line 2 is not JSON" in json.loads(body)["message"]


@pytest.mark.parametrize(
    "kind",
    ["application/x-npy", "application/x-npz", "application/vnd.apache.parquet", "text/html"],
)
async def test_other_types_are_refused_in_plain_text(kind: str) -> None:
    """The status is 415."""
    status, body, headers = await only("digits", post("x", ("Content-Type", kind)))
    assert status == 415
    assert headers.get("content-type") == "text/plain; charset=utf-8"
    assert kind.encode() in body


@pytest.mark.parametrize(
    ("value", "is_returned"),
    [("a=1;b", True), ("x" * 1024, True), ("x" * 1025, False), ("é", False)],
)
@pytest.mark.parametrize("body", ['{"inputs": [1]}', "[", '{"inputs": {"x": ["q"]}}'])
async def test_custom_attributes_return_with_every_response(
    body: str, value: str, is_returned: bool
) -> None:
    """Errors have them too, and what cannot be a header does not disturb."""
    name = "X-Amzn-SageMaker-Custom-Attributes"
    status, _, headers = await only("nan", post(body, JSON, (name, value)))
    assert (status == 200) == (body == '{"inputs": [1]}')
    assert headers.get(name.lower()) == (value if is_returned else None)


async def test_replies_of_a_decoupled_model_are_lines() -> None:
    """They are sent one by one."""
    responses = await answers("count", post('{"inputs": [2]}', JSON, ("Accept", "*/*")))
    assert [json.loads(bytes(each.view)) for each in responses] == [
        {"predictions": [0]},
        {"predictions": [1]},
    ]
    assert responses[0].headers.get("content-type") == "application/jsonlines"


async def test_a_caller_of_json_alone_gets_the_only_reply() -> None:
    """A model of this kind with several replies has an error for it."""
    wire = post('{"inputs": [1]}', JSON, ("Accept", "application/json"))
    status, body, headers = await only("count", wire)
    assert (status, json.loads(body)) == (200, {"predictions": [0]})
    assert headers.get("content-type") == "application/json"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"messages": []}', "'messages', a form for language models"),
        ('{"instances": [[1]], "inputs": [1]}', "instances and inputs: expected exactly one"),
        ('{"columns": [], "data": []}', "none of the forms"),
        ('{"inputs": [1], "params": [1]}', "params is a list of 1 items: expected an object"),
        ('{"inputs": [1], "params": {"a": [1]}}', "params.a is a list of 1 items"),
        ('{"dataframe_split": [1]}', "dataframe_split is a list of 1 items: expected an object"),
        ('{"dataframe_records": {"a": 1}}', "dataframe_records is an object: expected a list"),
        ('{"inputs": [{"b64": "AAEC"}]}', "inputs is a table, and input 'x'"),
    ],
)
async def test_forms_that_do_not_exist_are_refused(body: str, text: str) -> None:
    """Each status is 400, with a code and a text."""
    status, found, _ = await only("nan", post(body, JSON))
    assert status == 400
    assert text in json.loads(found)["message"]


async def test_nonfinite_numbers_can_be_refused() -> None:
    """The option holds for both directions."""
    status, body, _ = await only("nan", post('{"inputs": [1]}', JSON), nonfinite="refuse")
    assert (status, json.loads(body)["error_code"]) == (500, "INTERNAL_ERROR")
    status, _, _ = await only("digits", post('{"inputs": [NaN]}', JSON), nonfinite="refuse")
    assert status == 400


def test_declared_binary_outputs_are_base64_text() -> None:
    """A reload may change the declaration; other models are written as text."""
    codec = HttpCodec(options={"default_model": "m"})
    call = codec.decode_call(post('{"inputs": [1]}', JSON))
    reply = InferResponse(model=ModelRef("m"), outputs=(items_tensor("y", (1,), [b"\xff"]),))
    with pytest.raises(InvalidOutput, match="not UTF-8"):
        codec.encode_reply(call, reply)
    codec.declare({"m": RowsForm(binary=frozenset({"y"}))})
    assert json.loads(bytes(codec.encode_reply(call, reply).view)) == {"predictions": ["/w=="]}
    codec.declare({})
    with pytest.raises(InvalidOutput):
        codec.encode_reply(call, reply)


@pytest.mark.parametrize(
    ("kind", "body", "passes"),
    [
        ("application/jsonlines", b'{"a": 1}\n[2]\n', True),
        ("application/jsonlines", b'{"a": 1}\n{"a": 1, "a": 2}\n', False),
        ("application/jsonlines; charset=utf-8", b"1, 2\n", False),
        ("application/vnd.apache.parquet", b"PAR1\xff", True),
        ("application/json", b'{"a": 1, "a": 2}', False),
        ("text/csv", b"\xff", False),
    ],
)
def test_lines_and_bytes_pass_unless_ambiguous(kind: str, body: bytes, passes: bool) -> None:
    """No reader takes bytes of another type for JSON."""
    wire = HttpRequest("POST", "/invocations", "", Headers([("Content-Type", kind)]), (body,))
    assert passes is HttpCodec().is_plain(wire)
