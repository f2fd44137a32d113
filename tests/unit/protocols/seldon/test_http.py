"""What clients of Seldon send over REST, and get."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from gateway.wire.http import HttpRequest
from tests.unit.protocols.seldon.models import answer, post

EXACT = 2**53
TENSOR = '{"data":{"tensor":{"shape":[%s],"values":[%s]}}}'


async def ask(
    model: str, message: Any, declared: dict[str, Any] | None = None, **options: Any
) -> tuple[int, Any]:
    """Return the status, and the answer or the text of an error."""
    wire = message
    if not isinstance(message, HttpRequest):
        wire = post(message if isinstance(message, str) else json.dumps(message))
    response = await answer(model, wire, options, declared)
    found = json.loads(bytes(response.view))
    return response.status, found["status"]["info"] if "status" in found else found


@pytest.mark.parametrize(
    ("model", "message", "place"),
    [
        ("integers", '{"data":{"ndarray":[[1,2],[3]]}}', "data.ndarray[1]"),
        ("integers", '{"data":{"ndarray":[[1,null]]}}', "data.ndarray[0][1] is null"),
        ("integers", '{"data":{"ndarray":[[1,1.5]]}}', "data.ndarray[0][1] is 1.5"),
        ("integers", '{"data":{"ndarray":[[true]]}}', "data.ndarray[0][0] is true"),
        ("integers", '{"data":{"ndarray":[["1"]]}}', "data.ndarray[0][0] is '1'"),
        ("integers", '{"data":{"ndarray":[[9007199254740994.0]]}}', "data.ndarray[0][0] is"),
        ("bytes8", '{"data":{"ndarray":[[1,128]]}}', "data.ndarray[0][1] is 128"),
        ("bytes8", TENSOR % ("1,2", "1,-129.0"), "data.tensor.values[1] is -129"),
        ("integers", TENSOR % ("2,2", "1,2,3,1.5"), "data.tensor.values[3] is 1.5"),
        ("integers", TENSOR % ("1,1", EXACT + 1), "data.tensor.values[0] is 9007199254740993"),
        ("integers", TENSOR % ("1,1", "NaN"), "data.tensor.values[0] is nan"),
        ("integers", TENSOR % ("2,2", "1,2,3"), "data.tensor.values has 3 numbers"),
        ("integers", TENSOR % ("-1,2", "1,2"), "data.tensor.shape[0] is -1"),
        ("integers", TENSOR % ("2,1.5", "1,2"), "data.tensor.shape[1] is 1.5"),
        ("integers", TENSOR % (f"{2**31},{2**31}", "1"), "data.tensor.shape[0] is 2147483648"),
        ("integers", TENSOR % (f"{2**31 - 1},{2**31 - 1}", "1"), "data.tensor"),
        ("integers", TENSOR % ("1,1", "[1]"), "data.tensor.values"),
        ("flags", TENSOR % ("1,1", "1"), "data.tensor.values[0] is 1"),
        ("texts", TENSOR % ("1,1", "1"), "data.tensor.values[0] is 1"),
        ("floats", '{"data":{"ndarray":[[1e39]]}}', "data.ndarray[0][0] is 1e+39"),
        ("integers", '{"strData":"x"}', "strData is 'x'"),
        ("upper", '{"binData":"%%"}', "binData is '%%'"),
        ("upper", '{"strData":1}', "strData is 1"),
        ("upper", '{"jsonData":{"a":1}}', "models.NAME.protocols.seldon.json"),
        ("integers", '{"data":{"tftensor":{"dtype":"DT_NOPE"}}}', "data.tftensor"),
        ("integers", '{"data":{"tftensor":[1]}}', "data.tftensor"),
        ("integers", '{"data":[1]}', "data is a list"),
        ("integers", '{"data":{"ndarray":1}}', "data.ndarray is 1"),
        ("integers", '{"data":{"names":1,"ndarray":[]}}', "data.names is 1"),
        ("integers", '{"meta":1,"data":{"ndarray":[[1]]}}', "meta is 1"),
        ("integers", '{"meta":{"puid":1},"data":{"ndarray":[[1]]}}', "meta.puid is 1"),
        ("integers", '{"meta":{"tags":[]},"data":{"ndarray":[[1]]}}', "meta.tags is a list"),
        ("integers", '{"meta":{},"names":[]}', "no payload"),
        ("integers", '{"data":{"ndarray":[1]}}', "has shape [1]: expected [-1, -1]"),
    ],
)  # fmt: skip
async def test_a_wrong_value_is_refused_with_its_place(
    model: str, message: str, place: str
) -> None:
    """The status is 400, for a short message and for a long one."""
    for text in (message, message + " " * 9000):
        status, info = await ask(model, text)
        assert (status, place in info) == (400, True), info


NUMBERS = '{"tensor":{"shape":[%s],"values":[%s]}}'


@pytest.mark.parametrize(
    ("model", "data", "answered"),
    [
        ("bytes8", '{"ndarray":[[1.0,-128]]}', '{"ndarray":[[1,-128]]}'),
        ("unsigned", '{"ndarray":[18446744073709551615]}', '{"ndarray":[18446744073709551615]}'),
        ("unsigned", '{"ndarray":[9007199254740992.0]}', '{"ndarray":[9007199254740992]}'),
        ("unsigned", '{"ndarray":[1.0,9007199254740993]}', '{"ndarray":[1,9007199254740993]}'),
        ("bytes8", NUMBERS % ("1,2", "-128.0,127"), NUMBERS % ("1,2", "-128,127")),
        ("unsigned", NUMBERS % (1, 9007199254740992), NUMBERS % (1, 9007199254740992)),
        ("flags", '{"ndarray":[[true,false]]}', '{"ndarray":[[true,false]]}'),
        ("texts", '{"ndarray":[["é",""]]}', '{"ndarray":[["é",""]]}'),
        ("floats", NUMBERS % ("1,1", "0.1"), NUMBERS % ("1,1", "0.10000000149011612")),
        ("floats", '{"ndarray":[[0.1]]}', '{"ndarray":[[0.1]]}'),
        ("halves", '{"ndarray":[[0.1]]}', '{"ndarray":[[0.099975586]]}'),
        ("integers", "{}", '{"ndarray":[]}'),
        ("integers", '{"ndarray":[]}', '{"ndarray":[]}'),
        ("integers", NUMBERS % ("0,3", ""), NUMBERS % ("0,3", "")),
    ],
)
async def test_values_are_exact_in_the_form_of_the_request(
    model: str, data: str, answered: str
) -> None:
    """Long messages, which become arrays, give the same."""
    for padding in ("", " " * 9000):
        status, found = await ask(model, f'{{"data":{data}}}{padding}')
        assert status == 200, found
        del found["data"]["names"]
        assert repr(json.loads(answered)) == repr(found["data"])


async def test_infinities_and_nan_are_words_unless_they_are_refused() -> None:
    """The option `nonfinite` decides, for requests and answers."""
    text = '{"data":{"ndarray":[[NaN,Infinity,-Infinity]]}}'
    response = await answer("doubles", post(text))
    assert b'"ndarray":[[NaN,Infinity,-Infinity]]' in bytes(response.view)
    assert (await ask("doubles", text, nonfinite="refuse"))[0] == 400


async def test_bits_of_a_tensor_are_booleans_with_the_option() -> None:
    """Any other number stays an error."""
    message = TENSOR % ("1,2", "1,0.0")
    status, found = await ask("flags", message, bits=True)
    assert (status, found["data"]["ndarray"]) == (200, [[True, False]])
    assert (await ask("flags", TENSOR % ("1,1", "2"), bits=True))[0] == 400


async def test_a_tensor_proto_keeps_its_datatype() -> None:
    """The answer has the same form, with the bytes of the elements."""
    proto = {
        "dtype": "DT_INT64",
        "tensorShape": {"dim": [{"size": "1"}, {"size": "2"}]},
        "int64Val": [str(2**60 + 1), "-3"],
    }
    status, found = await ask("integers", {"data": {"tftensor": proto}})
    assert status == 200
    reply = found["data"]["tftensor"]
    assert reply["dtype"] == "DT_INT64"
    assert [{"size": "1"}, {"size": "2"}] == reply["tensorShape"]["dim"]
    values = np.frombuffer(base64.b64decode(reply["tensorContent"]), "<i8")
    assert values.tolist() == [2**61 + 2, -6]


async def test_names_stand_for_columns_and_are_never_null() -> None:
    """They are declared, or numbers of the second axis."""
    message = {"data": {"names": ["a", "b"], "ndarray": [[1, 2]]}}
    assert (await ask("integers", message))[1]["data"]["names"] == ["t:0", "t:1"]
    declared = {"names": ["p", "q"]}
    assert (await ask("integers", message, declared))[1]["data"]["names"] == ["p", "q"]
    assert (await ask("list", {"data": {"ndarray": [1]}}))[1]["data"]["names"] == []


async def test_an_id_is_that_of_the_request_or_a_new_one() -> None:
    """`meta` is always there, and the header has the id too."""
    message = '{"data":{"ndarray":[[1]]}}'
    for headers in ((), (("Seldon-Puid", "from-header"),)):
        response = await answer("integers", post(message, *headers))
        puid = json.loads(bytes(response.view))["meta"]["puid"]
        assert puid == response.headers.get("seldon-puid")
        assert puid == (headers[0][1] if headers else puid)
        assert puid
    tagged = {"meta": {"puid": "p", "tags": {"a": "x", "l": [1], "n": None}}}
    _, found = await ask("integers", {**tagged, "data": {"ndarray": [[1]]}})
    assert found["meta"] == {"puid": "p", "tags": {"a": "x", "l": [1]}}


@pytest.mark.parametrize(
    "wire",
    [
        post(
            "a=1&json=" + quote('{"strData":"é+ "}'),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ),
        HttpRequest("GET", "/predict", "json=" + quote('{"strData":"é+ "}')),
        post(
            b'--b\r\nContent-Disposition: form-data; name="strData"; filename="f"\r\n'
            b"Content-Type: text/plain\r\n\r\n\xc3\xa9+ \r\n--b\r\n"
            b'Content-Disposition: form-data; name="meta"\r\n\r\n{"puid":"7"}\r\n--b--\r\n',
            ("Content-Type", 'multipart/form-data; charset=utf-8; boundary="b"'),
        ),
    ],
    ids=["urlencoded", "query", "multipart"],
)
async def test_a_message_comes_in_several_ways(wire: HttpRequest) -> None:
    """Forms, queries and parts have the same message."""
    status, found = await ask("upper", wire)
    assert (status, found["strData"]) == (200, "é+ ".encode().upper().decode())


MULTIPART = "multipart/form-data; boundary=b"
URLENCODED = "application/x-www-form-urlencoded"
PART = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n--b--'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", b"{}"),
        ("multipart/form-data", b""),
        (MULTIPART, b"--b\r\n\r\n\r\n--b--"),
        (MULTIPART, PART % (b"binData", b"x")),
        (MULTIPART, PART % (b"strData", b"\xff")),
        (MULTIPART, PART % (b"data", b"{")),
        (URLENCODED, b"a=1"),
        (URLENCODED, b"json=%FF"),
        ("application/json", b""),
        ("application/json", b"null"),
        ("application/json", b'{"strData":"a","strData":"b"}'),
    ],
)
async def test_a_body_without_a_message_is_400(kind: str, body: bytes) -> None:
    """The reason is that of bad data."""
    response = await answer("upper", post(body, ("Content-Type", kind)))
    status = json.loads(bytes(response.view))["status"]
    assert (response.status, status["reason"]) == (400, "MICROSERVICE_BAD_DATA")


async def test_json_is_a_text_or_an_object_of_inputs_where_it_is_declared() -> None:
    """Integers of any size and NaN stay in the text."""
    message = '{"jsonData":{"a":[1,null,NaN,123456789012345678901]}}'
    response = await answer("wrapped", post(message), None, {"json": "text"})
    assert json.loads(bytes(response.view))["strData"].startswith('{"got":{"a":[1,null,NaN,1234')
    objects = '{"jsonData":{"a":[[1,2]],"b":[3]}}'
    status, found = await ask("both", objects, {"json": "inputs", "output": "sum"})
    assert (status, found["data"]["tensor"]) == (200, {"shape": [1], "values": [6.0]})
    assert (await ask("both", '{"jsonData":[1]}', {"json": "inputs"}))[0] == 400


COLUMNS = {"columns": {"a": ["0", "1"], "b": ["2"]}}


async def test_several_outputs_need_a_declaration() -> None:
    """One of them answers, or all as JSON."""
    message = {"data": {"ndarray": [[1, 2, 3], [4, 5, 6]]}}
    status, info = await ask("both", message, COLUMNS)
    assert (status, "seldon.output" in info) == (501, True)
    _, found = await ask("both", message, {**COLUMNS, "output": "sum"})
    assert found["data"]["ndarray"] == [6.0, 15.0]
    _, found = await ask("both", message, {**COLUMNS, "json_outputs": "true"})
    assert found["jsonData"] == {"sum": [6.0, 15.0], "b": [3.0, 6.0]}


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ('{"ndarray":[[1,2,3],[4,5,"x"]]}', "data.ndarray[1][2] is 'x'"),
        ('{"ndarray":[[1,2,3],[4,5]]}', "data.ndarray[1] is a list of 2"),
        ('{"ndarray":[[1,2]]}', "has shape [1, 2]: expected rows of 3"),
        (NUMBERS % ("2,3", "1,2,3,4,5,1e39"), "data.tensor.values[5] is 1e+39"),
    ],
)
async def test_wrong_columns_are_refused_with_their_place(data: str, place: str) -> None:
    """The place is that in the message, not in the column."""
    status, info = await ask("both", f'{{"data":{data}}}', {**COLUMNS, "output": "sum"})
    assert (status, place in info) == (400, True), info


async def test_several_inputs_without_columns_are_refused_by_name() -> None:
    """The text has the names of the inputs."""
    status, info = await ask("both", {"data": {"ndarray": [[1]]}})
    assert status == 400
    assert "'a'" in info
    assert "'b'" in info


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/predict", 405),
        ("GET", "/api/v1.0/predictions", 405),
        ("POST", "/health/ping", 405),
        ("POST", "/transform-input", 400),
        ("POST", "/aggregate", 400),
        ("POST", "/seldon/ns/m/route", 400),
        ("POST", "/api/v1.0/nope", 404),
        ("POST", "/seldon/ns/m/api/v1.0/nope", 404),
        ("POST", "/seldon/ns", 404),
        ("GET", "/seldon/ns/m/health/ping", 200),
        ("GET", "/ready", 200),
        ("GET", "/live", 200),
    ],
)
async def test_paths_have_their_methods(method: str, path: str, status: int) -> None:
    """A wrong method is 405 with Allow, and a graph's step is refused by name."""
    response = await answer("integers", HttpRequest(method, path))
    assert status == response.status
    assert (response.headers.get("allow") is not None) == (status == 405)


async def test_metadata_are_those_of_the_model() -> None:
    """They are in the style of Open Inference."""
    for path in ("/metadata", "/api/v1.0/metadata", "/api/v1.0/metadata/integers"):
        response = await answer("integers", HttpRequest("GET", path))
        found = json.loads(bytes(response.view))
        assert found["name"] == "integers"
        assert [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}] == found["inputs"]
