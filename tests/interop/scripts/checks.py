"""The checks that the real clients carry out, as data: the same for every transport.

What is expected is what Triton 2.51.0 answers.  Where another server differs is said by the
tests of that server.  Errors are expected by a part of their text.
"""

import math
from collections.abc import Iterator

from tests.interop.scripts.steps import (
    END_OF_REQUEST,
    Answer,
    Check,
    Expected,
    Failure,
    Infer,
    Outputs,
    Query,
    Wanted,
)
from tests.interop.scripts.tensors import Tensor, Value

LARGE_BYTES = 602_112
"""One image of 3 x 224 x 224 FP32."""

VALUES: dict[str, tuple[Value, ...]] = {
    "BOOL": (True, False, True),
    "UINT8": (0, 1, 255),
    "UINT16": (0, 1, 65_535),
    "UINT32": (0, 1, 2**32 - 1),
    "UINT64": (0, 2**53 + 1, 2**64 - 1),
    "INT8": (-128, 0, 127),
    "INT16": (-32_768, 0, 32_767),
    "INT32": (-(2**31), 0, 2**31 - 1),
    "INT64": (-(2**63), 2**53 + 1, 2**63 - 1),
    "FP16": (-0.0, 1.5, 65_504.0, math.inf),
    "BF16": (-0.0, 1.5, -3.140625, math.inf),
    "FP32": (-0.0, 0.1, 3.4028234663852886e38, -math.inf, math.nan),
    "FP64": (-0.0, 0.1, 1.7976931348623157e308, math.inf, math.nan),
    "BYTES": (b"", b"text", "größe".encode(), b"\xff\x00\xfe"),
}
"""The edges of each datatype."""

JSON_VALUES: dict[str, tuple[Value, ...]] = {
    **{name: values for name, values in VALUES.items() if name not in {"FP16", "BF16"}},
    "FP32": (-0.0, 0.5, -1.25),
    "FP64": (0.1, -1e300),
    "BYTES": (b"", b"text", "größe".encode()),
}
"""Those that JSON can carry: no halves, nothing that is not finite, only UTF-8."""

OK = Answer(True)
_LEFT = tuple(range(16))
_RIGHT = (1,) * 16


def _pair(shape: tuple[int, ...] = (1, 16)) -> tuple[Tensor, ...]:
    count = math.prod(shape)
    return (
        Tensor("INPUT0", "INT32", shape, _LEFT[:count]),
        Tensor("INPUT1", "INT32", shape, _RIGHT[:count]),
    )


_SUM = Tensor("OUTPUT0", "INT32", (1, 16), tuple(a + 1 for a in _LEFT))
_DIFFERENCE = Tensor("OUTPUT1", "INT32", (1, 16), tuple(a - 1 for a in _LEFT))
_BOTH_OUTPUTS = (Wanted("OUTPUT0"), Wanted("OUTPUT1"))


def _add_sub(name: str, **how: object) -> Check:
    """Return a check of add_sub with both outputs named, and *how* it is sent."""
    options: dict[str, object] = {"outputs": _BOTH_OUTPUTS, **how}
    infer = Infer("add_sub", _pair(), **options)  # type: ignore[arg-type]  # names as in Infer
    return Check(name, (infer,), (Outputs((_SUM, _DIFFERENCE)),))


def _one(name: str, value: int) -> Tensor:
    return Tensor(name, "INT32", (1,), (value,))


def _query(name: str, method: str, *arguments: str, expected: Expected = OK) -> Check:
    return Check(name, (Query(method, arguments),), (expected,))


def _queries() -> Iterator[Check]:
    yield _query("live", "is_server_live")
    yield _query("ready", "is_server_ready")
    yield _query("server_metadata", "get_server_metadata", expected=Answer({"name": "triton"}))
    yield _query("model_ready", "is_model_ready", "add_sub")
    yield _query("model_ready_version", "is_model_ready", "versions", "3")
    yield _query("model_ready_unknown", "is_model_ready", "nope", expected=Answer(False))
    yield _query(
        "model_metadata", "get_model_metadata", "add_sub", expected=Answer({"name": "add_sub"})
    )
    yield _query(
        "model_metadata_version",
        "get_model_metadata",
        "versions",
        "3",
        expected=Answer({"name": "versions", "versions": ["3"]}),
    )
    yield _query(
        "model_metadata_unknown", "get_model_metadata", "nope", expected=Failure("unknown model")
    )
    yield Check(
        "model_config",
        (Query("get_model_config", ("add_sub",), only=("config", "name", "max_batch_size")),),
        (Answer({"config": {"name": "add_sub", "max_batch_size": 8}}),),
        http_expected=(Answer({"name": "add_sub", "max_batch_size": 8}),),
    )
    yield Check(
        "model_statistics",
        (
            Query(
                "get_inference_statistics",
                ("versions",),
                only=("model_stats", "name", "version"),
            ),
        ),
        (
            Answer(
                {"model_stats": [{"name": "versions", "version": v} for v in ("1", "3")]},
            ),
        ),
    )
    yield Check(
        "repository_index",
        (Query("get_model_repository_index", only=("models", "name", "version", "state")),),
        (Answer(None),),
    )


def _infers() -> Iterator[Check]:
    yield _add_sub("add_sub_binary_both")
    yield _add_sub("add_sub_binary_in_json_out", binary_out=False)
    yield _add_sub("add_sub_json_in_binary_out", binary_in=False)
    yield _add_sub("add_sub_json_both", binary_in=False, binary_out=False)
    yield _add_sub("add_sub_no_outputs_named", outputs=None)
    yield Check(
        "one_output",
        (Infer("add_sub", _pair(), (Wanted("OUTPUT1"),)),),
        (Outputs((_DIFFERENCE,)),),
    )
    yield Check(
        "outputs_swapped",
        (Infer("add_sub", _pair(), _BOTH_OUTPUTS[::-1]),),
        # Triton answers in the order of the model, not of the request.
        (Outputs((_SUM, _DIFFERENCE)),),
    )
    yield Check(
        "request_id",
        (Infer("add_sub", _pair(), _BOTH_OUTPUTS, options={"request_id": "id-7 ü"}),),
        (Outputs((_SUM, _DIFFERENCE), request_id="id-7 ü"),),
    )
    yield Check("add_sub_string", (_strings(binary=True),), (Outputs(_string_sums()),))
    yield Check("add_sub_string_json", (_strings(binary=False),), (Outputs(_string_sums()),))
    yield from (_identity(each, values) for each, values in VALUES.items())
    yield from (_identity_json(each, values) for each, values in JSON_VALUES.items())
    count = LARGE_BYTES // 4
    yield _round_trip("large", "FP32", (1, count), tuple(float(i) for i in range(count)))
    yield _round_trip("empty_bytes", "BYTES", (1, 0), ())
    yield _round_trip("empty_int64", "INT64", (0,), ())
    yield Check(
        "sum_and_empty",
        (Infer("sum_and_empty", (Tensor("X", "FP32", (3,), (1.0, 2.0, 3.5)),)),),
        (Outputs((Tensor("SUM", "FP64", (1,), (6.5,)), Tensor("EMPTY", "FP32", (0,), ()))),),
    )
    yield Check(
        "classification",
        (
            Infer(
                "classify",
                (Tensor("SCORES_IN", "FP32", (1, 4), (0.5, 0.25, 2.0, 1.0)),),
                (Wanted("SCORES", classes=2),),
            ),
        ),
        (Outputs((Tensor("SCORES", "BYTES", (1, 2), (b"2.000000:2:plum", b"1.000000:3:fig")),)),),
    )
    yield Check(
        "versions",
        # The last of them names no version, and is answered by the highest.
        tuple(
            Infer("versions", (_one("X", 0),), options={"model_version": v} if v else {})
            for v in ("3", "1", "")
        ),
        tuple(Outputs((_one("VERSION", v),)) for v in (3, 1, 3)),
    )
    parameters = {"text": "ü", "whole": 7, "yes": True}
    yield Check(
        "parameters",
        (Infer("params_echo", (_one("INPUT0", 0),), options={"parameters": parameters}),),
        (_echoed(b'{"text": "\\u00fc", "whole": 7, "yes": true}'),),
    )
    yield Check(
        "forwarded_header",
        (Infer("params_echo", (_one("INPUT0", 0),), options={"headers": {"x-fwd-tag": "v1"}}),),
        (_echoed(b'{"x-fwd-tag": "v1"}'),),
    )
    yield Check(
        "sequence",
        tuple(
            Infer(
                "sequence_sum",
                (Tensor("INPUT", "INT32", (1, 1), (value,)),),
                options={
                    "sequence_id": 4242,
                    "sequence_start": value == 1,
                    "sequence_end": value == 3,
                },
            )
            for value in (1, 2, 3)
        ),
        tuple(Outputs((Tensor("OUTPUT", "INT32", (1, 1), (total,)),)) for total in (1, 3, 6)),
    )


def _deliveries() -> Iterator[Check]:
    for each in ("gzip", "deflate"):
        yield _add_sub(f"{each}_request", request_compression=each)
        yield _add_sub(f"{each}_response", response_compression=each)
        yield _add_sub(f"{each}_both_json", request_compression=each, response_compression=each,
                       binary_in=False, binary_out=False)  # fmt: skip
    yield Check(
        "at_once",
        tuple(
            Infer("add_sub", _pair(), (Wanted("OUTPUT0"),), options={"request_id": str(i)})
            for i in range(32)
        ),
        tuple(Outputs((_SUM,), request_id=str(i)) for i in range(32)),
        manner="at_once",
    )
    yield Check(
        "client_timeout",
        (Infer("slow", (_one("MS", 1500),), client_timeout_s=0.3),),
        (Failure("Deadline Exceeded"),),
        http_expected=(Failure("TimeoutError"),),
    )
    yield Check("slow", (Infer("slow", (_one("MS", 50),)),), (Outputs((_one("MS_OUT", 50),)),))


def _errors() -> Iterator[Check]:
    def fails(name: str, model: str, inputs: tuple[Tensor, ...], text: str, **how: object) -> Check:
        infer = Infer(model, inputs, **how)  # type: ignore[arg-type]  # names as in Infer
        return Check(name, (infer,), (Failure(text),))

    yield fails("unknown_model", "nope", _pair(), "Request for unknown model: 'nope' is not found")
    yield fails("unknown_version", "add_sub", _pair(), "version 9", options={"model_version": "9"})
    yield fails("wrong_shape", "add_sub", _pair((1, 15)), "unexpected shape for input")
    yield fails("missing_input", "add_sub", _pair()[:1], "expected 2 inputs but got 1")
    yield fails("unknown_output", "add_sub", _pair(), "NOPE", outputs=(Wanted("NOPE"),))
    wrong = tuple(Tensor(t.name, "FP32", t.shape, t.values) for t in _pair())
    yield fails("wrong_datatype", "add_sub", wrong, "data-type")
    unstarted = {"sequence_id": 99_999}
    yield fails(
        "sequence_not_started",
        "sequence_sum",
        (Tensor("INPUT", "INT32", (1, 1), (1,)),),
        "must specify the START flag",
        options=unstarted,
    )
    for code in range(9):
        yield fails(f"model_error_{code}", "fail_always", (_one("INPUT0", code),), "on purpose")
    yield fails("stream_model_without_stream", "repeat_stream", (_one("IN", 1),), "decoupled")


def _streams() -> Iterator[Check]:
    def stream(name: str, steps: tuple[Infer, ...], *expected: Expected) -> Check:
        return Check(name, steps, expected, transports=("grpc",), manner="stream")

    def element(value: int, index: int) -> Outputs:
        return Outputs((_one("OUT", value), Tensor("IDX", "UINT32", (1,), (index,))))

    def repeat(*values: int) -> Infer:
        return Infer("repeat_stream", (Tensor("IN", "INT32", (len(values),), values),))

    yield stream("stream", (repeat(4, 5),), element(4, 0), element(5, 1), END_OF_REQUEST)
    yield stream("stream_of_none", (repeat(),), END_OF_REQUEST)
    yield stream(
        "stream_with_error",
        (repeat(4, -1, 6),),
        element(4, 0),
        Failure("negative element at 1"),
        element(6, 2),
        END_OF_REQUEST,
    )
    yield stream(
        "stream_two_requests",
        (Infer("add_sub", _pair()), Infer("versions", (_one("X", 0),))),
        Outputs((_SUM, _DIFFERENCE)),
        Outputs((_one("VERSION", 3),)),
    )
    yield stream("stream_unknown_model", (Infer("nope", _pair()),), Failure("unknown model"))


def _strings(*, binary: bool) -> Infer:
    inputs = tuple(
        Tensor(t.name, "BYTES", t.shape, tuple(str(v).encode() for v in t.values)) for t in _pair()
    )
    return Infer("add_sub_string", inputs, _BOTH_OUTPUTS, binary_in=binary, binary_out=binary)


def _string_sums() -> tuple[Tensor, ...]:
    return tuple(
        Tensor(t.name, "BYTES", t.shape, tuple(str(v).encode() for v in t.values))
        for t in (_SUM, _DIFFERENCE)
    )


def _identity(datatype: str, values: tuple[Value, ...]) -> Check:
    return _round_trip(f"identity_{datatype.lower()}", datatype, _shape(datatype, values), values)


def _identity_json(datatype: str, values: tuple[Value, ...]) -> Check:
    name = f"identity_{datatype.lower()}_json"
    return _round_trip(name, datatype, _shape(datatype, values), values, binary=False)


def _shape(datatype: str, values: tuple[Value, ...]) -> tuple[int, ...]:
    return (1, len(values)) if datatype in {"FP32", "BYTES"} else (len(values),)


def _round_trip(
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    values: tuple[Value, ...],
    *,
    binary: bool = True,
) -> Check:
    infer = Infer(
        f"identity_{datatype.lower()}",
        (Tensor("INPUT0", datatype, shape, values),),
        (Wanted("OUTPUT0"),),
        binary_in=binary,
        binary_out=binary,
    )
    # A gRPC client of Triton's sends raw data always: JSON is a matter of HTTP.
    transports = ("http", "grpc") if binary else ("http",)
    expected = Outputs((Tensor("OUTPUT0", datatype, shape, values),))
    return Check(name, (infer,), (expected,), transports=transports)  # type: ignore[arg-type]


def _echoed(text: bytes) -> Outputs:
    return Outputs((Tensor("PARAMS", "BYTES", (1,), (text,)),))


CHECKS: dict[str, Check] = {
    check.name: check
    for group in (_queries, _infers, _deliveries, _errors, _streams)
    for check in group()
}
"""Every check, by name."""
