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
        binary: It has the binary tensor extension.
        half_in_json: It accepts FP16 as JSON numbers.
        text_only: Its BYTES are text, in the binary form too.
        versions: A path may have a version.
        needs_id: It fails on requests without an id.
        generate_stream: Its only streams over HTTP are those of the generate extension, and it
            refuses to be asked for the only reply of a decoupled model.
        infer_stream: It has `infer_stream`: responses as server-sent events.
        index: It has `POST /v2/repository/index`; others have `GET /v2/models`.
        extended: It has Triton's extensions: configuration, statistics and the like.
        control: Its models can be loaded and unloaded.
        numbers: Number of elements, BYTES excepted, that a server of one process reads within a
            second: 0.4 us each in MLServer, 2.6 us in KServe. One request keeps all others waiting
            there. None for other servers.
        keeps_names: It keeps metrics for each name of a model, also for unknown ones.
        nonfinite_words: It writes NaN and infinities into JSON as words.
        echoes_id: A response has the id of its request, so another id, or none, means that it
            belongs to another request. None: where there is an id, it is that of the request.
            False: models choose the ids of responses.
        signed_parameters: Integer parameters above 2**63 - 1 lose precision.
        whole_versions: It reads a version as the whole number that it begins with.
    """

    name: str
    binary: bool
    half_in_json: bool = False
    text_only: bool = False
    versions: bool = True
    needs_id: bool = False
    generate_stream: bool = False
    infer_stream: bool = False
    index: bool = False
    extended: bool = False
    control: bool = False
    numbers: int | None = None
    keeps_names: bool = False
    echoes_id: bool | None = None
    signed_parameters: bool = False
    whole_versions: bool = False
    nonfinite_words: bool = False


_TRITON = Dialect(
    name="triton",
    echoes_id=True,
    binary=True,
    index=True,
    extended=True,
    control=True,
    signed_parameters=True,
    whole_versions=True,
    generate_stream=True,
    nonfinite_words=True,
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
            binary=False,
            half_in_json=True,
            text_only=True,
            infer_stream=True,
            index=True,
            control=True,
            numbers=2_500_000,
            keeps_names=True,
        ),
        Dialect(
            name="kserve",
            echoes_id=False,
            numbers=400_000,
            binary=True,
            text_only=True,
            versions=False,
            needs_id=True,
            control=True,
        ),
        Dialect(name="ovms", binary=True, echoes_id=True),
        # The gateway itself: all of Triton's features, as far as the listener enables them.
        Dialect(
            name="gateway",
            echoes_id=True,
            binary=True,
            infer_stream=True,
            index=True,
            extended=True,
            control=True,
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
