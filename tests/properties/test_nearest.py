"""Decimals in JSON and CSV are rounded once, and their size is known before their datatype."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.protocol import Codec
from gateway.ir.calls import InferRequest, inference_of
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import as_raw
from gateway.ir.values.nearest import loads_to_odd, may_lie_between, to_odd
from gateway.policies.access.rules import Size
from gateway.policies.access.sizes import size_of
from gateway.policies.complete.parameters import split_flat_members
from gateway.policies.complete.untyped import is_untyped, quickly_typed, typed_request
from gateway.registry import protocol
from gateway.wire.http import Headers, HttpRequest, HttpResponse

HALF = "1.000000059604644775390625"
"""Exactly between two values of FP32."""

JSON = "application/json"
DECIMALS = [
    HALF,
    f"{HALF}01",
    "1.00000005960464477539062499",
    f"-{HALF}0000000000000000000000000000000000001",
    "16777217",
    "9007199791611905",
    "-9007199791611905.0",
    "3.4028235677973366e38",
    "7.00649232162408535461864791644958e-46",
    "7.0064923216240853546186479164495806e-46",
    "7.0064923216240853546186479164495807e-46",
    "1e-400",
    "0.1",
]
PLACES = [
    ("tfs", "/v1/models/m:predict", JSON, '{"instances":[%s]}'),
    ("tfs", "/v1/models/m:predict", JSON, '{"instances":[{"x":%s},{"x":0.5}]}'),
    ("tfs", "/v1/models/m:predict", JSON, '{"inputs":{"x":[%s]}}'),
    ("mlflow", "/invocations", JSON, '{"inputs":[%s]}'),
    ("mlflow", "/invocations", JSON, '{"instances":[%s]}'),
    (
        "mlflow",
        "/invocations",
        JSON,
        '{"dataframe_split":{"columns":["x"],"data":[[%s]]}}',
    ),
    ("mlflow", "/invocations", JSON, '{"dataframe_records":[{"x":%s}]}'),
    ("mlflow", "/invocations", "text/csv", "x\n%s\n"),
    ("mlflow", "/invocations", "application/jsonlines", "%s\n0.5\n"),
    ("seldon", "/api/v1.0/predictions", JSON, '{"data":{"ndarray":[%s]}}'),
    (
        "seldon",
        "/api/v1.0/predictions",
        JSON,
        '{"data":{"tensor":{"shape":[1],"values":[%s]}}}',
    ),
    ("torchserve", "/predictions/m", JSON, "[%s]"),
    (
        "grps",
        "/grps/v1/infer/predict",
        JSON,
        '{"gtensors":{"tensors":[{"name":"x","dtype":"DT_FLOAT32","flat_float32":[%s],"shape":[1]}]}}',
    ),
    ("grps", "/grps/v1/infer/predict", JSON, '{"ndarray":[%s]}'),
    (
        "oip",
        "/v2/models/m/infer",
        JSON,
        '{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[%s]}]}',
    ),
    ("oip", "/v2/models/m/generate", JSON, '{"x":[%s]}'),
    ("oip", "/v2/models/m/generate", JSON, '{"parameters":{"x":%s}}'),
]
MORE = 3000
"""Elements that make a message so long that it has no Python objects."""


def metadata(*shape: int) -> ModelMetadata:
    """Return the metadata of a model with one input and one output."""
    return ModelMetadata(
        name="m",
        inputs=(TensorMetadata("x", Datatype.FP32, shape),),
        outputs=(TensorMetadata("y", Datatype.FP32, shape),),
    )


def nearest(text: str) -> np.float32:
    """Return the value of FP32 that is nearest to a decimal, ties to even."""
    exact = Fraction(text)
    with np.errstate(over="ignore"):
        near = np.float32(float(text))
        above, below = np.float32(np.inf), np.float32(-np.inf)
        around = [near, np.nextafter(near, below), np.nextafter(near, above)]
    return min(
        [each for each in around if math.isfinite(each)],
        key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.uint32)) & 1),
    )


def codec_of(protocol_name: str) -> Codec[HttpRequest, HttpResponse]:
    spec = protocol(protocol_name)
    options = {"default_model": "m"} if protocol_name == "grps" else {}
    assert spec.http is not None
    return spec.http.codec(DEFAULT_LIMITS, spec.options(options))


def typed(
    codec: Codec[HttpRequest, HttpResponse], wire: HttpRequest, model: ModelMetadata
) -> InferRequest:
    """Return a request as *model* gets it."""
    call = inference_of(codec.decode_call(wire))
    assert call is not None
    if call.flat_members:
        return split_flat_members(call, model)
    if not is_untyped(call.inputs):
        return call
    return quickly_typed(call, model) or typed_request(call, model)


def first_element(
    codec: Codec[HttpRequest, HttpResponse], wire: HttpRequest, name: str
) -> np.float32:
    """Return the first element of the input, as the model gets it."""
    # Tables, and bodies of one item, need an input of rank 2.
    body = bytes(wire.view)
    has_rows = name == "torchserve" or b"dataframe" in body or body.startswith(b"x")
    found = typed(codec, wire, metadata(-1, 1) if has_rows else metadata(-1))
    return np.float32(np.frombuffer(as_raw(found.inputs[0]), "<f4")[0])


def post(path: str, kind: str, body: str) -> HttpRequest:
    return HttpRequest("POST", path, "", Headers((("content-type", kind),)), (body.encode(),))


@pytest.mark.parametrize(("name", "path", "kind", "body"), PLACES)
def test_decimals_are_rounded_once(name: str, path: str, kind: str, body: str) -> None:
    """Each form of each protocol gives the nearest FP32, with a template and without one."""
    codec = codec_of(name)
    # A matrix of floats refuses an integer that it would round.
    texts = [text for text in DECIMALS if "dataframe" not in body or not text.lstrip("-").isdigit()]
    for text in texts:
        for _ in range(3):  # the third message has a template
            found = first_element(codec, post(path, kind, body % text), name)
            assert nearest(text).tobytes() == found.tobytes(), (text, found)


@pytest.mark.parametrize(
    ("name", "path", "kind", "body"),
    [
        place
        for place in PLACES
        if "[%s]" in place[3] and "[[" not in place[3] and place[0] != "torchserve"
    ],
)
def test_decimals_of_long_messages_are_rounded_once(
    name: str, path: str, kind: str, body: str
) -> None:
    """A message of thousands of numbers gives the same values."""
    codec = codec_of(name)
    rest = ",0.5" * MORE
    for text in DECIMALS:
        long = body.replace('"shape":[1]', f'"shape":[{MORE + 1}]') % f"{text}{rest}"
        found = first_element(codec, post(path, kind, long), name)
        assert nearest(text).tobytes() == found.tobytes(), (text, found)


SELDON_TENSOR = '{"data":{"tensor":{"shape":[1],"values":[%s]}}}'
SELDON_ARRAY = '{"data":{"ndarray":[%s]}}'


@pytest.mark.parametrize(
    ("name", "path", "kind", "body", "datatype"),
    [
        *[
            ("mlflow", "/invocations", "text/csv", f"x,y\n{blank}1{blank},1\n", Datatype.INT64)
            for blank in ("\u2009", "\u00a0", "\v", "\x1c", "_")
        ],
        ("seldon", "/api/v1.0/predictions", JSON, SELDON_TENSOR % "true", Datatype.BOOL),
        ("seldon", "/api/v1.0/predictions", JSON, SELDON_TENSOR % "null", Datatype.FP32),
        *[
            ("seldon", "/api/v1.0/predictions", JSON, form % text, Datatype.INT32)
            for form in (SELDON_TENSOR, SELDON_ARRAY)
            for text in ("1e-400", "1.00000000000000000001", "1.5")
        ],
    ],
)
def test_what_is_no_number_of_the_datatype_is_refused(
    name: str, path: str, kind: str, body: str, datatype: Datatype
) -> None:
    """Neither blanks of other scripts, nor words, nor fractions that a double loses are numbers."""
    names = ("x", "y") if name == "mlflow" else ("x",)
    inputs = tuple([TensorMetadata(each, datatype, (-1,)) for each in names])
    model = ModelMetadata(name="m", inputs=inputs, outputs=inputs)
    with pytest.raises(InvalidRequest, match="expected"):
        typed(codec_of(name), post(path, kind, body), model)


@pytest.mark.parametrize(("name", "path", "kind", "body"), PLACES)
def test_rules_count_no_less_than_a_model_gets(name: str, path: str, kind: str, body: str) -> None:
    """Rules count the elements of each form, and no fewer bytes than those of any datatype."""
    codec = codec_of(name)
    for _ in range(3):
        call = inference_of(codec.decode_call(post(path, kind, body % "1")))
        assert call is not None
        size = size_of(call)
        count = 2 if "0.5" in body else 1
        width = 8 if is_untyped(call.inputs) or call.flat_members else 4
        assert Size(count, count * width) == size


@given(st.floats(2.0**-100, 2.0**100, width=32), st.integers(-60, 60))
def test_doubles_beside_the_middle_are_odd(value: float, beside: int) -> None:
    """A decimal beside the middle of two values of FP32 becomes a double on the same side."""
    after = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    middle = (value + after) / 2
    with localcontext() as context:
        context.prec = 400
        exact = Decimal(middle) * (1 + Decimal(beside).scaleb(-50))
    odd = to_odd(str(exact))
    assert may_lie_between([middle], Datatype.FP32)
    assert (exact > Decimal(middle)) == (odd > middle)
    assert (exact < Decimal(middle)) == (odd < middle)
    assert loads_to_odd(f"[{exact}]".encode()) == [odd]
