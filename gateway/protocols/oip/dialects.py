"""Features of Open Inference servers over HTTP, and the differences between them.

Source: docs/protocols/open-inference.md, "17. Dialects of upstream servers".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A kind of server.

    Attributes:
        has_binary: It has the binary tensor extension.
        has_half_in_json: It accepts FP16 as JSON numbers.
        is_text_only: Its BYTES are text, in the binary form too.
        has_versions: A path may have a version.
        needs_id: It fails on requests without an id.
        has_generate_stream: Its only streams over HTTP are those of the generate extension, and it
            refuses to be asked for the only reply of a decoupled model.
        has_infer_stream: It has `infer_stream`: responses as server-sent events.
        has_index: It has `POST /v2/repository/index`; others have `GET /v2/models`.
        has_extensions: It has Triton's extensions: configuration, statistics and the like.
        has_control: Its models can be loaded and unloaded.
        numbers: Number of elements, BYTES excepted, that a server of one process reads within a
            second: 0.4 us each in MLServer, 2.6 us in KServe. One request keeps all others waiting
            there. None for other servers.
        keeps_names: It keeps metrics for each name of a model, also for unknown ones.
        has_nonfinite_words: It writes NaN and infinities into JSON as words.
        echoes_id: A response has the id of its request, so another id, or none, means that it
            belongs to another request. None: where there is an id, it is that of the request.
            False: models choose the ids of responses.
        has_signed_parameters: Integer parameters above 2**63 - 1 lose precision.
        has_whole_versions: It reads a version as the whole number that it begins with.
    """

    name: str
    has_binary: bool
    has_half_in_json: bool = False
    is_text_only: bool = False
    has_versions: bool = True
    needs_id: bool = False
    has_generate_stream: bool = False
    has_infer_stream: bool = False
    has_index: bool = False
    has_extensions: bool = False
    has_control: bool = False
    numbers: int | None = None
    keeps_names: bool = False
    echoes_id: bool | None = None
    has_signed_parameters: bool = False
    has_whole_versions: bool = False
    has_nonfinite_words: bool = False


_TRITON = Dialect(
    name="triton",
    echoes_id=True,
    has_binary=True,
    has_index=True,
    has_extensions=True,
    has_control=True,
    has_signed_parameters=True,
    has_whole_versions=True,
    has_generate_stream=True,
    has_nonfinite_words=True,
)

# Triton has the most features: an unknown server is assumed to be one.
_UNKNOWN = replace(_TRITON, echoes_id=None)
DIALECTS: Mapping[str, Dialect] = {"auto": _UNKNOWN, "unknown": _UNKNOWN} | {
    dialect.name: dialect
    for dialect in (
        _TRITON,
        Dialect(
            name="mlserver",
            echoes_id=True,
            has_binary=False,
            has_half_in_json=True,
            is_text_only=True,
            has_infer_stream=True,
            has_index=True,
            has_control=True,
            numbers=2_500_000,
            keeps_names=True,
        ),
        Dialect(
            name="kserve",
            echoes_id=False,
            numbers=400_000,
            has_binary=True,
            is_text_only=True,
            has_versions=False,
            needs_id=True,
            has_control=True,
        ),
        Dialect(name="ovms", has_binary=True, echoes_id=True),
        # The gateway itself: all of Triton's features, as far as the listener enables them.
        Dialect(
            name="gateway",
            echoes_id=True,
            has_binary=True,
            has_infer_stream=True,
            has_index=True,
            has_extensions=True,
            has_control=True,
        ),
    )
}

_SERVER_NAMES = {
    "triton": "triton",
    "tensor-gateway": "gateway",
    "mlserver": "mlserver",
    "kserve": "kserve",
    "openvino model server": "ovms",
    "ovms": "ovms",
}

# What C++ reads as a number, whatever follows it.
_NUMBER = re.compile(r"\s*[+-]?[0-9]")
_WHOLE = re.compile(r"[0-9]+")


def dialect_of(server_name: str) -> str | None:
    """Return the dialect of a server by the `name` in its metadata; None when unknown."""
    return _SERVER_NAMES.get(server_name.strip().lower())


def check_whole_version(model: ModelRef) -> None:
    """Refuse a version that Triton would read as another one: 1.5 and 1e3 as 1.

    Triton itself refuses a version that does not begin with a number.

    Raises:
        InvalidRequest: The version of *model* begins with a number and is not one.
    """
    if _NUMBER.match(model.version) and not _WHOLE.fullmatch(model.version):
        raise InvalidRequest(
            f"version {model.version!r} of model {model.name!r} is not a whole number: expected "
            "decimal digits, since the upstream would read another version",
            model=model,
        )
