"""Features of Open Inference servers over HTTP, and the differences between them.

Source: docs/protocols/open-inference.md, "17. Dialects of upstream servers".
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from gateway.api.protocol import named_model
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported, VersionNotNumeric


class NonfiniteWords(enum.Enum):
    """The words for NaN and infinities that a parser of JSON reads."""

    PYTHON = enum.auto()
    """NaN, Infinity and -Infinity. A number that no double holds is an infinity."""
    RAPID = enum.auto()
    """RapidJSON's, which Triton has: also -NaN, Inf and -Inf. Such a number is an error."""
    ANY = enum.auto()
    """All these words and numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A kind of server.

    Attributes:
        has_binary: It has the binary tensor extension.
        keeps_json: It may lack the extension: a request that came as JSON is sent as JSON.
        has_null_infinities: It writes infinities into JSON as `null`.
        has_half_in_json: It accepts and sends FP16 as JSON numbers.
        reads_as_numpy: It converts the elements of JSON as numpy does, so `null` is NaN, 1.0 and
            "1" are integers, and 1 is true. A shape may have one -1, and elements of BYTES may be
            any JSON value.
        reads_json_parameters: Parameters may be lists and objects.
        reserves_keys: Parameters with the names of Triton's have types.
        reads_words: The words for NaN and infinities that it reads in JSON; None for none.
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
    keeps_json: bool = False
    has_null_infinities: bool = False
    has_half_in_json: bool = False
    reads_as_numpy: bool = False
    reads_json_parameters: bool = False
    reserves_keys: bool = True
    reads_words: NonfiniteWords | None = None
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
    reads_words=NonfiniteWords.RAPID,
)

KSERVE: Final = "kserve"

# Triton has the most features: an unknown server is assumed to be one.
_UNKNOWN = replace(_TRITON, echoes_id=None, keeps_json=True)
JSON_ALONE: Final = replace(_UNKNOWN, has_binary=False, keeps_json=False)
"""An unknown server, for requests that came as JSON."""

DIALECTS: dict[str, Dialect] = {"auto": _UNKNOWN, "unknown": _UNKNOWN} | {
    dialect.name: dialect
    for dialect in (
        _TRITON,
        Dialect(
            name="mlserver",
            echoes_id=True,
            has_binary=False,
            has_null_infinities=True,
            has_half_in_json=True,
            reads_as_numpy=True,
            reads_json_parameters=True,
            reserves_keys=False,
            is_text_only=True,
            has_infer_stream=True,
            has_index=True,
            has_control=True,
            numbers=2_500_000,
            keeps_names=True,
        ),
        Dialect(
            name=KSERVE,
            echoes_id=False,
            numbers=400_000,
            has_binary=True,
            has_null_infinities=True,
            reads_as_numpy=True,
            reads_words=NonfiniteWords.PYTHON,
            reserves_keys=False,
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

MOST_LENIENT: Final = "any"
"""The name of a dialect that reads what any server reads; no server has it."""

READERS: Final[Mapping[str, Dialect]] = DIALECTS | {
    MOST_LENIENT: Dialect(
        name=MOST_LENIENT,
        has_binary=True,
        has_half_in_json=True,
        reads_as_numpy=True,
        reads_json_parameters=True,
        reads_words=NonfiniteWords.ANY,
        reserves_keys=False,
    )
}
"""How requests are read, by the dialect of their server."""

_SERVER_NAMES: Final = {
    "triton": "triton",
    "tensor-gateway": "gateway",
    "mlserver": "mlserver",
    "kserve": KSERVE,
    "openvino model server": "ovms",
    "ovms": "ovms",
}

# What C++ reads as a number, whatever follows it.
_NUMBER = re.compile(r"\s*[+-]?[0-9]")
_WHOLE = re.compile(r"[0-9]+")


def dialect_of(server_name: str) -> str | None:
    """Return the dialect of a server by the `name` in its metadata; None when unknown."""
    return _SERVER_NAMES.get(server_name.strip().lower())


class VersionedDialect(Protocol):
    """What a kind of server does with the version of a model."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def has_versions(self) -> bool: ...  # noqa: D102
    @property
    def has_whole_versions(self) -> bool: ...  # noqa: D102


required_model: Final = partial(named_model, "Open Inference")


def check_version(dialect: VersionedDialect, model: ModelRef) -> None:
    """Refuse a version where the server would use another one.

    Triton reads 1.5 and 1e3 as 1. It refuses a version that does not begin with a number itself.

    Raises:
        VersionNotNumeric: The version begins with a number and is not one.
        Unsupported: *model* has a version and the dialect has none.
    """
    version = model.version
    if dialect.has_whole_versions and _NUMBER.match(version) and not _WHOLE.fullmatch(version):
        raise VersionNotNumeric(
            f"version {version!r} of model {model.name!r} is not a whole number: expected "
            "decimal digits, since the upstream would read another version",
            model=model,
        )
    if version and not dialect.has_versions:
        raise Unsupported(
            f"model {str(model)!r} has a version: {dialect.name} has no versions", model=model
        )
