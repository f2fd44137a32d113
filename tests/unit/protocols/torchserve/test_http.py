"""What clients of TorchServe send over HTTP, and get."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import CallSequence
from gateway.protocols.torchserve.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest
from tests.unit.protocols.torchserve.models import JSON, OCTETS, TEXT, answers, post

FORM = ("Content-Type", "application/x-www-form-urlencoded")
ITEM = '{"INPUT0": [1, 2], "INPUT1": [3, 4]}'
SUMS = {"OUTPUT0": [4, 6], "OUTPUT1": [-2, -2]}


async def only(wire: HttpRequest, *args: Any, **more: Any) -> tuple[int, bytes, Headers]:
    (response,) = await answers(wire, *args, **more)
    return response.status, bytes(response.view), response.headers


async def refused(wire: HttpRequest, *args: Any, **more: Any) -> tuple[int, str, str]:
    status, body, headers = await only(wire, *args, **more)
    document = json.loads(body)
    assert document["code"] == status
    assert headers.get("content-type") == "application/json"
    return status, document["type"], document["message"]


def multipart(*fields: tuple[str, bytes, str]) -> tuple[bytes, tuple[str, str]]:
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n'.encode()
        + (f"Content-Type: {kind}\r\n" if kind else "").encode()
        + b"\r\n"
        + value
        + b"\r\n"
        for name, value, kind in fields
    ]
    body = b"".join([*parts, b"--B--\r\n"])
    return body, ("Content-Type", 'multipart/form-data; boundary="B"')


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize(
    "path",
    [
        "/predictions/add_sub",
        "/predictions/add_sub/1.0",
        "/predictions/add_sub/1",
        "/predictions/add_sub/1.0/more/for/handlers",
        "/models/add_sub/invoke",
        "/add_sub/predict",
        "/add_sub/1.0/predict",
        "/predictions/add%5Fsub",
    ],
)
async def test_every_path_of_predictions(method: str, path: str) -> None:
    """An object of items becomes a batch of one, and the answer has no batch axis."""
    wire = HttpRequest(method, path, "", Headers((JSON,)), (ITEM.encode(),))
    status, body, headers = await only(wire)
    assert (status, json.loads(body)) == (200, SUMS)
    assert headers.get("content-type") is None


@pytest.mark.parametrize("query", ["model_name=add_sub", "other=1&model_name=add%5Fsub"])
async def test_invocations_name_their_model_in_the_query(query: str) -> None:
    """Without a name it is the default model, or the error says which setting names one."""
    wire = post("", ITEM, JSON, path="/invocations", query=query)
    assert json.loads((await only(wire))[1]) == SUMS
    wire = post("", ITEM, JSON, path="/invocations")
    assert json.loads((await only(wire, default="add_sub"))[1]) == SUMS
    status, kind, text = await refused(wire)
    assert (status, kind) == (400, "BadRequestException")
    assert "default_model" in text


@pytest.mark.parametrize("headers", [(JSON,), (OCTETS,), (), (TEXT,)])
async def test_json_without_its_content_type_is_read_for_numbers(headers: Any) -> None:
    """A list is the one numeric input of the model, and one output is answered as its value."""
    status, body, _ = await only(post("digits", "[1, 2, 3.5]", *headers))
    assert (status, body) == (200, b"6.5")


@pytest.mark.parametrize("headers", [(OCTETS,), (), (("Content-Type", "image/jpeg"),), (TEXT,)])
@pytest.mark.parametrize("data", [b"\xff\xd8\x00 image", b"[1, 2", b"[1]", b'"a"', b"", b"\xef"])
async def test_bytes_are_one_element(headers: Any, data: bytes) -> None:
    """Any body but JSON is the only element of a model that takes BYTES."""
    forms = {"raw": {"response": "bytes"}}
    assert (await only(post("raw", data, *headers), forms))[:2] == (200, data)


async def test_json_for_an_input_of_bytes_is_its_text() -> None:
    """The content type decides; an object that names the input is JSON too."""
    assert (await only(post("raw", '["a"]', JSON)))[:2] == (200, b'["a"]')
    assert (await only(post("raw", '{"x": ["a"]}')))[:2] == (200, b'["a"]')
    assert (await only(post("raw", '[{"b64": "/w=="}]', JSON)))[:2] == (200, b'[{"b64":"/w=="}]')
    forms = {"raw": {"response": "text"}}
    assert (await only(post("raw", '{"z": ["a"]}'), forms))[:2] == (200, b'{"z": ["a"]}')


async def test_a_form_has_its_body_in_data_or_body() -> None:
    """Other fields are for handlers, and left out."""
    for name in ("data", "body"):
        body, kind = multipart((name, b"[1,2]", ""), ("note", b"hi", "text/plain"))
        assert (await only(post("digits", body, kind)))[:2] == (200, b"3.0")
        body, kind = multipart(("note", b"hi", ""), (name, b"[1,2]", "application/json"))
        assert (await only(post("digits", body, kind)))[:2] == (200, b"3.0")
        assert (await only(post("digits", f"{name}=%5B1,+2%5D", FORM)))[:2] == (200, b"3.0")
    forms = {"raw": {"response": "bytes"}}
    value = b"\x00--B\r\n\r\n--\xff\r\n"
    body, kind = multipart(("data", value, "application/octet-stream"))
    assert (await only(post("raw", body, kind), forms))[:2] == (200, value)


async def test_fields_by_the_names_of_inputs_need_the_declaration() -> None:
    """The refusal names it."""
    body, kind = multipart(("INPUT0", b"[1,2]", ""), ("INPUT1", b"[3,4]", "application/json"))
    status, _, text = await refused(post("add_sub", body, kind))
    assert status == 400
    assert "models.NAME.protocols.torchserve.request is columns" in text
    forms = {"add_sub": {"request": "columns"}}
    assert json.loads((await only(post("add_sub", body, kind), forms))[1]) == SUMS
    fields = "INPUT0=[1,2]&INPUT1=[3,4]"
    assert json.loads((await only(post("add_sub", fields, FORM), forms))[1]) == SUMS


@pytest.mark.parametrize(
    ("model", "body", "headers"),
    [
        ("add_sub", "[1, 2]", (JSON,)),
        ("add_sub", "\xff", ()),
        ("add_sub", '{"instances": [[1]]}', (JSON,)),
        ("add_sub", '{"INPUT0": [1]}', (JSON,)),
        ("digits", b"\x00\x01", (OCTETS,)),
        ("digits", "", ()),
        ("digits", "words", (TEXT,)),
        ("digits", "[1,2]", (FORM,)),
    ],
)
async def test_other_bodies_need_a_declaration(model: str, body: Any, headers: Any) -> None:
    """The status is 400, and the text names the key."""
    status, kind, text = await refused(post(model, body, *headers))
    assert (status, kind) == (400, "BadRequestException")
    assert "models.NAME.protocols.torchserve.request" in text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("[1, 2", "the body is not JSON"),
        ('{"a": 1', "the body is not JSON"),
        ("null", "null"),
        ("{}", "empty"),
        ('{"INPUT0": [1.5], "INPUT1": [1]}', "body.INPUT0[0] is 1.5: expected an integer"),
        ('{"INPUT0": [true], "INPUT1": [1]}', "body.INPUT0[0] is true: expected an integer"),
        ('{"INPUT0": [1], "INPUT1": [2147483648]}', "body.INPUT1[0] is 2147483648"),
        ('{"INPUT0": [[1]], "INPUT1": [1]}', "body.INPUT0 has shape [1, 1]"),
        ('{"INPUT0": [1], "INPUT0": [1]}', "'INPUT0'"),
    ],
)
async def test_wrong_json_is_refused_with_its_place(body: str, text: str) -> None:
    """Nothing is truncated, and nothing wraps."""
    status, kind, found = await refused(post("add_sub", body, JSON))
    assert (status, kind) == (400, "BadRequestException")
    assert text in found


async def test_declared_forms_of_bytes() -> None:
    """Bytes of tensors other than BYTES are their elements, if the configuration says so."""
    halves = np.array([0.1, -2, 65504], "<f2").tobytes()
    both = {"request": "bytes", "response": "bytes"}
    assert (await only(post("halves", halves), {"halves": both}))[:2] == (200, halves)
    status, _, text = await refused(post("halves", halves[:-1]), {"halves": both})
    assert (status, "expected 6 bytes" in text) == (400, True)
    status, _, text = await refused(post("raw", b"\xff"), {"raw": {"request": "text"}})
    assert (status, "the body is not UTF-8" in text) == (400, True)
    status, _, text = await refused(post("raw", b"\xff"), {"raw": {"response": "text"}})
    assert (status, "torchserve.response is bytes" in text) == (400, True)
    status, _, text = await refused(post("add_sub", ITEM), {"add_sub": {"response": "bytes"}})
    assert (status, "torchserve.output" in text) == (400, True)
    one = {"add_sub": {"output": "OUTPUT1", "content_type": "application/json"}}
    status, body, headers = await only(post("add_sub", ITEM), one)
    assert (status, body) == (200, b"[-2,-2]")
    assert headers.get("content-type") == "application/json"
    assert (await only(post("digits", "[2]"), {"digits": {"response": "json"}}))[1] == (
        b'{"output":2.0}'
    )


async def test_a_request_is_one_item_if_declared() -> None:
    """An axis of 1 is put before the item, and taken off the answer; or the body has it."""
    assert (await only(post("fixed", "[1, 2]"), {"fixed": {"batch": "true"}}))[1] == b"[1,2]"
    assert (await only(post("fixed", "[[1, 2]]")))[1] == b"[[1,2]]"
    body = "[[1, 2], [3, 4]]"
    assert (await only(post("digits", body), {"digits": {"batch": "false"}}))[1] == b"[3.0,7.0]"
    status, _, text = await refused(post("halves", "[1]"), {"halves": {"batch": "true"}})
    assert (status, "models.NAME.protocols.torchserve.batch" in text) == (400, True)


async def test_an_envelope_has_several_items() -> None:
    """The answer has one prediction for each."""
    forms = {name: {"envelope": "json"} for name in ("digits", "add_sub")}
    status, body, _ = await only(post("digits", '{"instances": [[1, 2], [3, 4]]}'), forms)
    assert (status, json.loads(body)) == (200, {"predictions": [3, 7]})
    status, body, _ = await only(post("add_sub", f'{{"instances": [{ITEM}, {ITEM}]}}'), forms)
    assert (status, json.loads(body)) == (200, {"predictions": [SUMS, SUMS]})
    assert (await refused(post("digits", "[1]", JSON), forms))[0] == 400


async def test_versions_are_text_with_a_dot() -> None:
    """N.0 is version N of the model; others need the table of the configuration."""
    for version, status in (("1.0", 200), ("2.0", 200), ("2", 200), ("9.0", 404), ("v2", 404)):
        path = f"/predictions/digits/{version}"
        found, body, _ = await only(post("", "[1]", path=path))
        assert found == status, version
        if status == 404:
            assert json.loads(body)["type"] == "ModelVersionNotFoundException"
    forms = {"digits": {"version_map": {"v2": "2"}}}
    assert (await only(post("", "[1]", path="/predictions/digits/v2"), forms))[0] == 200


async def test_errors_have_code_type_and_message() -> None:
    """The code is the status."""
    found = await refused(post("none", "[1]"))
    assert found[:2] == (404, "ModelNotFoundException")
    for path in ("/predictions", "/predictions/", "/v3/none", "/models/a/b/c"):
        found = await refused(post("", "[1]", path=path))
        assert found[:2] == (404, "ResourceNotFoundException"), path
    found = await refused(HttpRequest("GET", "/predictions/digits"))
    assert found[:2] == (405, "MethodNotAllowedException")


async def test_ping_is_the_readiness_of_the_models() -> None:
    """Any method asks."""
    for method in ("GET", "POST", "HEAD"):
        wire = HttpRequest(method, "/ping")
        status, body, _ = await only(wire)
        assert (status, json.loads(body)) == (200, {"status": "Healthy"})
        status, body, _ = await only(wire, is_ready=False)
        assert (status, json.loads(body)) == (500, {"status": "Unhealthy"})


async def test_a_decoupled_model_streams_its_replies() -> None:
    """The parts have nothing between them, and an error after the first one ends the body."""
    found = await answers(post("stream", "[2]"))
    assert [b"[0]", b"[1]"] == [bytes(each.view) for each in found]
    assert found[0].headers.get("ts_stream_next") == "true"
    assert (await refused(post("stream", "[1.5]")))[0] == 400


async def listed(path: str, query: str = "") -> Any:
    """Return the document of a question about models."""
    status, body, _ = await only(HttpRequest("GET", path, query))
    assert status == 200
    return json.loads(body)


async def test_management_lists_and_describes_models() -> None:
    """A page has a token for the next one, and each version of a model is described."""
    for query, token, names in (
        ("limit=2", "2", ["add_sub", "digits"]),
        ("limit=2&next_page_token=2", "4", ["fixed", "halves"]),
    ):
        document = await listed("/models", query)
        assert document["nextPageToken"] == token
        assert [each["modelName"] for each in document["models"]] == names
    for path, versions in (("", ["1.0", "2.0"]), ("/all", ["1.0", "2.0"]), ("/2.0", ["2.0"])):
        document = await listed(f"/models/digits{path}")
        assert [each["modelVersion"] for each in document] == versions
    for path, kind in (("none", "ModelNotFound"), ("digits/3.0", "ModelVersionNotFound")):
        found = await refused(HttpRequest("GET", f"/models/{path}"))
        assert found[:2] == (404, f"{kind}Exception")
    assert (await refused(HttpRequest("GET", "/models", "limit=x")))[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/models"),
        ("PUT", "/models/digits"),
        ("PUT", "/models/digits/1.0/set-default"),
        ("DELETE", "/models/digits/1.0"),
    ],
)
async def test_management_is_read_only(method: str, path: str) -> None:
    """What would change models is refused by name."""
    status, kind, text = await refused(HttpRequest(method, path))
    assert (status, kind) == (405, "MethodNotAllowedException")
    assert "read-only" in text
    status, _, text = await refused(HttpRequest(method, path), options={"shared": ("/models",)})
    assert (status, "multi_model" in text) == (404, True)


async def test_a_document_describes_the_predictions() -> None:
    """OPTIONS asks for it."""
    for path in ("/predictions/digits", "/"):
        status, body, _ = await only(HttpRequest("OPTIONS", path))
        assert (status, json.loads(body)["openapi"]) == (200, "3.0.1")


def test_a_sequence_is_named_by_headers() -> None:
    """Its id goes to stateful models."""
    headers = [("ts_request_sequence_id", "s-1"), ("ts_request_sequence_start", "true")]
    call = HttpCodec().decode_call(post("digits", "[1]", *headers))
    assert isinstance(call, InferRequest)
    assert call.sequence == CallSequence("s-1", start=True)


MULTIPART = "multipart/form-data; boundary=B"
NAMED = b"--B\r\nContent-Disposition: form-data"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data"),
        (b"--B\r\n\r\nx\r\n--B--", MULTIPART),
        (NAMED + b"\r\n\r\nx\r\n--B--", MULTIPART),
        (NAMED + b'; name="data"\r\n\r\nx', MULTIPART),
        (b"no", MULTIPART),
        (b"--Bx\r\n", MULTIPART),
        (b"%ff=1", FORM[1]),
        (b"&".join([b"a=1"] * 3000), FORM[1]),
    ],
)
async def test_a_broken_form_is_refused(body: bytes, kind: str) -> None:
    """It is an error of the client."""
    status, _, _ = await refused(post("digits", body, ("Content-Type", kind)))
    assert status in (400, 413)
