"""The recorded exchanges that our codecs reject or encode in another way, and why."""

from __future__ import annotations

from gateway.ir.errors import ErrorCode

# Tensors in shared memory have tests of their own: test_open_inference_shared.py.
SHARED = "089-triton-shm-infer"

# Streams and the generate extension have tests of their own: test_open_inference_streams.py.
STREAMS = (
    "096-triton-generate",
    "097-triton-generate-stream",
    "098-triton-generate-too-many",
    "099-triton-generate-stream-error",
    "165-triton-stream",
    "185-triton-stream-error",
    "186-triton-stream-empty-final",
    "187-triton-stream-unknown-then-ok",
    "188-triton-stream-sequence",
    "229-mlserver-stream",
    "248-kserve-stream",
)

_WRONG = ErrorCode.INVALID_ARGUMENT
_NOT_JSON = (_WRONG, "the request is not JSON")
_TENSOR_ONLY = (_WRONG, "not a JSON object.*pass data=json_bytes")

# Invalid requests, which the servers rejected too.
WRONG: dict[str, tuple[ErrorCode, str]] = {
    "020-triton-error-bad-json": _NOT_JSON,
    "021-triton-error-nested-mismatch": (_WRONG, r"'INPUT0' has 3 elements.*expected 16"),
    "022-triton-seed-json-and-data": _TENSOR_ONLY,
    "093-triton-binary-extra-bytes": (_WRONG, "16 bytes are left"),
    "094-triton-binary-short": (_WRONG, "'INPUT0' has binary_data_size 16: 8 bytes"),
    "095-triton-binary-no-header": (_WRONG, "Inference-Header-Content-Length must be"),
    "100-triton-error-not-found-path": (ErrorCode.NOT_FOUND, "path '/v2/nope' does not exist"),
    "101-triton-error-method": (_WRONG, "expected POST"),
    # The transport rejects the coding earlier; this body is as it was received.
    "102-triton-error-encoding": (_WRONG, "not a JSON object"),
    "122-mlserver-error-bad-json": _NOT_JSON,
    "123-mlserver-seed-json-and-data": _TENSOR_ONLY,
    "144-kserve-error-bad-json": _NOT_JSON,
    "145-kserve-error-nested-mismatch": (_WRONG, r"'INPUT0' has 3 elements.*expected 16"),
    "146-kserve-seed-json-and-data": _TENSOR_ONLY,
    "193-triton-error-mixed": (_WRONG, "contents, and the message has 2 raw contents"),
    "194-triton-error-contents-field": (_WRONG, "INT32 and has fp32_contents"),
}

# Calls that are not sent to the server of the exchange: it would fail or do something else.
NOT_ENCODED: dict[str, str] = {
    # The whole body is the tensor: `Complete` fills in the rest before it is sent on.
    "092-triton-raw-binary-request": "has no name, datatype or shape",
    "116-mlserver-infer-bytes-binary": "not UTF-8 at index 2.*mlserver accepts no binary",
    "130-kserve-model-metadata-version": "kserve has no versions",
    "137-kserve-infer-bytes-binary": "not UTF-8 at index 2.*kserve accepts text only",
    "236-kserve-index": "'kserve' has no repository index",
}

# Calls that MLServer accepts and our own listener does not: FP16 as JSON numbers.
MLSERVER_ONLY = frozenset({"118-mlserver-infer-fp16-binary"})

# Calls that are sent to another path than the client's: KServe lists its models at GET /v2/models.
OTHER_PATHS = frozenset({"132-kserve-repository-index"})
