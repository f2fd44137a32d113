"""Features of Open Inference servers over HTTP, and the differences between them.

Source: docs/protocols/open-inference.md, "17. Dialects of upstream servers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
    single_process: One request keeps all others waiting, so texts are limited.
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
    single_process: bool = False
    signed_parameters: bool = False
    whole_versions: bool = False


_TRITON = Dialect(
    name="triton",
    binary=True,
    index=True,
    extended=True,
    control=True,
    signed_parameters=True,
    whole_versions=True,
    generate_stream=True,
)

# Triton has the most features: an unknown server is assumed to be one.
DIALECTS: Mapping[str, Dialect] = {"auto": _TRITON} | {
    dialect.name: dialect
    for dialect in (
        _TRITON,
        Dialect(
            name="mlserver",
            binary=False,
            half_in_json=True,
            text_only=True,
            infer_stream=True,
            index=True,
            control=True,
            single_process=True,
        ),
        Dialect(
            name="kserve",
            single_process=True,
            binary=True,
            text_only=True,
            versions=False,
            needs_id=True,
            control=True,
        ),
        Dialect(name="ovms", binary=True),
        # The gateway itself: all of Triton's features, as far as the listener enables them.
        Dialect(
            name="gateway", binary=True, infer_stream=True, index=True, extended=True, control=True
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
