"""Values in another form than usual, with nothing lost, are read where servers read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import as_items, as_numpy
from gateway.ir.values.untyped import RowsForm
from gateway.policies.complete.untyped import is_untyped, typed_request
from gateway.registry import protocol, protocol_names
from gateway.wire.http import Headers, HttpRequest

JSON: Final = Headers((("Content-Type", "application/json"),))


class Form(NamedTuple):
    """How a protocol sends one value of a row in JSON.

    Attributes:
        protocol: Its name.
        path: The path of an inference.
        body: The text around the value.
        base64: The text around base64; "" where the protocol has none.
        options: Of the listener.
        has_whole_floats: Its servers take 1.0 for an integer.
    """

    protocol: str
    path: str
    body: str
    base64: str = ""
    options: Mapping[str, Any] = {}
    has_whole_floats: bool = True


B64 = '{"b64": %s}'
FORMS: Final = {
    # Observed at the server: it refuses 1.0 for an integer.
    "tfs": Form("tfs", "/v1/models/m:predict", '{"instances": [%s]}', B64, has_whole_floats=False),
    "tfs_columns": Form(
        "tfs", "/v1/models/m:predict", '{"inputs": [%s]}', B64, has_whole_floats=False
    ),
    "kserve": Form(
        "tfs", "/v1/models/m:predict", '{"instances": [%s]}', B64, {"dialect": "kserve"}
    ),
    "mlflow": Form("mlflow", "/invocations", '{"dataframe_records": [{"x": %s}]}', "%s"),
    "torchserve": Form("torchserve", "/predictions/m", "%s", B64),
    "seldon": Form("seldon", "/api/v1.0/predictions", '{"data": {"ndarray": [%s]}}'),
    "grps": Form(
        "grps",
        "/grps/v1/infer/predict",
        '{"gtensors": {"tensors": [{"name": "x", "dtype": "DT_INT64", "shape": [1], '
        '"flat_int64": [%s]}]}}',
    ),
}
# Their elements are bytes, or have a datatype of their own; Open Inference is read as its server
# reads it, and OpenAI's form has no tensors.
DEFAULTED: Final = ("grps", "mlflow", "seldon")
OTHERS: Final = {"graphpipe", "trtis", "oip", "openai"}


def values(form: Form, body: str, datatype: Datatype) -> list[Any]:
    """Return the elements of the only input of a request."""
    binding = protocol(form.protocol).http
    assert binding is not None
    options = {"default_model": "m"} if form.protocol in DEFAULTED else {}
    codec: Any = binding.codec(DEFAULT_LIMITS, {**options, **form.options})
    wire = HttpRequest("POST", form.path, "", JSON, (memoryview(body.encode()),))
    call = cast("InferRequest", codec.decode_call(wire))
    metadata = ModelMetadata(
        name="m",
        inputs=(TensorMetadata("x", datatype, (-1,)),),
        declarations={form.protocol: RowsForm(binary=frozenset({"x"}))},
    )
    found = typed_request(call, metadata) if is_untyped(call.inputs) else call
    (tensor,) = found.inputs
    if tensor.datatype is Datatype.BYTES:
        return [bytes(each) for each in as_items(tensor)]
    return as_numpy(tensor).reshape(-1).tolist()


def test_every_protocol_is_tried() -> None:
    """A new protocol of JSON is added here."""
    assert {*protocol_names()} == {form.protocol for form in FORMS.values()} | OTHERS


@pytest.mark.parametrize("name", FORMS)
def test_a_number_without_a_fraction_is_an_integer(name: str) -> None:
    """1.0 and 1e2 are integers where servers take them, and 1.5 is none anywhere."""
    form = FORMS[name]
    assert [7] == values(form, form.body % "7", Datatype.INT64)
    for text, expected in (("1.0", 1), ("1e2", 100), ("-3.0", -3)):
        if form.has_whole_floats:
            assert [expected] == values(form, form.body % text, Datatype.INT64)
        else:
            with pytest.raises(GatewayError):
                values(form, form.body % text, Datatype.INT64)
    for text in ("1.5", "1e-3", "true", "null"):
        with pytest.raises(GatewayError):
            values(form, form.body % text, Datatype.INT64)


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.base64])
def test_base64_may_have_ends_of_lines(name: str) -> None:
    """`base64 FILE` writes lines of 76 characters; other characters are none of base64."""
    form = FORMS[name]
    for text in ("aGVs\nbG8=\n", "aGVs\r\nbG8=", " aGVsbG8= ", "aGVsbG8="):
        body = form.body % (form.base64 % json.dumps(text))
        assert [b"hello"] == values(form, body, Datatype.BYTES)
    for text in ("aGV*sbG8=", "aGVsbG8", "a"):
        with pytest.raises(GatewayError, match="base64"):
            values(form, form.body % (form.base64 % json.dumps(text)), Datatype.BYTES)
