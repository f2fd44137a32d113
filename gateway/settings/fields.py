"""The kinds of values in a configuration file: how each is parsed, and its JSON Schema.

The `$comment` of a schema names the kind. The schema's defaults and docs/configuration.md use it.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    InstanceOf,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.settings.units import (
    Address,
    StreamAddress,
    Url,
    check_mode,
    parse_address,
    parse_duration,
    parse_header_value,
    parse_share,
    parse_size,
    parse_stream_address,
    parse_url,
    parse_workers,
)

DURATION: Final = "duration"
SIZE: Final = "size"


def text_parser(parse: Any, kind: type) -> BeforeValidator:
    """Return the validator of a field that *parse* reads from text; a *kind* passes as it is."""

    def convert(value: object) -> object:
        if isinstance(value, str):
            return parse(value)
        # The field itself decides whether it accepts null.
        if value is None or type(value) is kind:
            return value
        raise ValueError("expected text, not a mapping or a list")

    convert.__name__ = f"to_{kind.__name__}"
    return BeforeValidator(convert)


def field_schema(kind: str, types: str | list[str], *examples: str | int) -> WithJsonSchema:
    """Return what the JSON Schema says about a field: its kind, JSON types and examples."""
    return WithJsonSchema({"$comment": kind, "type": types, "examples": list(examples)})


_TEXT_OR_NUMBER = ["string", "integer"]

Duration = Annotated[
    float, text_parser(parse_duration, float), field_schema(DURATION, "string", "250ms", "30s")
]
Share = Annotated[float, text_parser(parse_share, float), field_schema("share", "string", "0.1%")]
Size = Annotated[int, text_parser(parse_size, int), field_schema(SIZE, _TEXT_OR_NUMBER, "16MiB")]
ListenAddress = Annotated[
    InstanceOf[Address],
    text_parser(parse_address, Address),
    field_schema("address", _TEXT_OR_NUMBER, "127.0.0.1:8000"),
]
SocketAddress = Annotated[
    InstanceOf[StreamAddress],
    text_parser(parse_stream_address, StreamAddress),
    field_schema(
        "address or unix socket", _TEXT_OR_NUMBER, "127.0.0.1:9000", "unix:/run/gateway.sock"
    ),
]
FileMode = Annotated[
    str, text_parser(check_mode, str), field_schema("octal file mode", _TEXT_OR_NUMBER, "0660")
]
WorkerCount = Annotated[
    int,
    text_parser(parse_workers, int),
    field_schema("integer or `auto`", _TEXT_OR_NUMBER, 2, "auto"),
]
UpstreamUrl = Annotated[
    InstanceOf[Url],
    text_parser(parse_url, Url),
    field_schema("URL", "string", "oip+grpc://127.0.0.1:8001"),
]
_PRINTABLE: Final = r"^[^\x00-\x1f\x7f]+$"
_VISIBLE: Final = r"^[!-~]+$"
_CALL_KEY: Final = r"^(model|address|client|header:[!-9;-~]+)$"
HEADER_KEY: Final = r"^header:[!-9;-~]+$"
"""A pattern: what calls are grouped by, if it can only be the value of a header."""
QUEUE_PRIORITY: Final = r"^(high|normal|low|header:[!-9;-~]+)$"
"""A pattern: the priority of the inferences of a route, or the header that has it."""
STICKY: Final = r"^(client|none|header:[!-9;-~]+)$"
"""A pattern: whose calls stay at one target during a cut-over."""
HEDGE_AFTER: Final = r"^(p[0-9]{1,2}(\.[0-9]+)?|[0-9]+(\.[0-9]+)?(us|ms|s))$"
"""A pattern: a percentile or a duration."""
MEMORY: Final = r"^([1-9][0-9]?%|[0-9]+[ A-Za-z]*)$"
"""A pattern: a percentage or a size."""
PART: Final = r"^([1-9][0-9]?%|[1-9][0-9]*)$"
"""A pattern: a percentage or a number."""
RATE: Final = r"^[0-9]*[1-9][0-9]*/(s|min)$"
"""A pattern: a number in a second or minute."""
HOST_PORT: Final = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"
"""A pattern: the address of a server."""
GRPC_SERVER: Final = HOST_PORT.replace("^", "^(grpcs?://)?")
"""A pattern: the address or the URL of a server of gRPC."""
STORE_URL: Final = r"^(rediss?|unix)://.+$"
"""A pattern: the URL of a store."""
QUOTA_LIMIT: Final = r"^[0-9][0-9.]* ?[A-Za-z]*/(s|min|hour|day|month)$"
"""A pattern: a number or a size in a period."""
CLIENT_NAME: Final = r"^[A-Za-z0-9._-]{1,64}$"
"""A pattern: the name of a client."""
HEADER_NAME: Final = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
"""A pattern: the name of a header."""
_ORIGIN: Final = r"^(\*|[a-z][a-z0-9+.-]*://[!-.0-~]+)$"
FORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        _PRINTABLE: "text without control characters",
        _VISIBLE: "ASCII characters without spaces",
        _CALL_KEY: "'model', 'address', 'client' or 'header:NAME'",
        HEADER_KEY: "'header:NAME'",
        QUEUE_PRIORITY: "'high', 'normal', 'low' or 'header:NAME'",
        STICKY: "'client', 'none' or 'header:NAME'",
        HEDGE_AFTER: "a percentile or a duration, as in p95 or 30ms",
        MEMORY: "a percentage from 1% to 99%, or a size, as in 90% or 4GiB",
        PART: "a percentage from 1% to 99%, or a whole number from 1, as in 25%",
        _ORIGIN: "an origin without a path, as in https://app.example.com, or *",
        GRPC_SERVER: "HOST:PORT, as in 127.0.0.1:9191, or grpcs://HOST:PORT",
        STORE_URL: "a URL, as in redis://127.0.0.1:6379/0",
        QUOTA_LIMIT: "a number or a size, and /s, /min, /hour, /day or /month, as in 1000/day",
        CLIENT_NAME: "1 to 64 letters, digits, '.', '_' and '-'",
        HEADER_NAME: "the name of a header",
        RATE: "a number and /s or /min, as in 200/s",
    }
)
"""What errors say about each pattern."""
Text = Annotated[str, StringConstraints(max_length=1024)]


def _check_full(text: str) -> str:
    if not text.strip():
        raise ValueError("expected text that is not blank")
    return text


_FULL = AfterValidator(_check_full)
Name = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=_PRINTABLE), _FULL]
FullText = Annotated[
    str, StringConstraints(min_length=1, max_length=1024, pattern=_PRINTABLE), _FULL
]
"""A text that is not blank."""


class Outside(enum.Enum):
    """What a text of the file names outside of it; only this machine knows whether it is there."""

    READ = "a file or a folder that is read"
    WRITTEN = "a file that lines are appended to"
    FOLDER = "a folder that is made, and written to"
    CALLABLE = "the dotted name of a callable"


InputFile = Annotated[Text, Outside.READ]
LogFile = Annotated[Text, Outside.WRITTEN]
Folder = Annotated[Text, Outside.FOLDER]
DottedName = Annotated[Text, Outside.CALLABLE]
HeaderName = Annotated[str, StringConstraints(pattern=HEADER_NAME, max_length=255, to_lower=True)]
Origin = Annotated[str, StringConstraints(max_length=255, pattern=_ORIGIN)]
"""An origin as browsers send it, or `*` for all of them."""
AdminToken = Annotated[
    str,
    StringConstraints(min_length=16, max_length=1024, pattern=_VISIBLE, strip_whitespace=True),
]
"""A token that nobody guesses: at least 16 characters of ASCII, without spaces."""
CallKey = Annotated[Text, Field(pattern=_CALL_KEY)]
"""What calls are grouped by: their model, their client or its address, or the value of a header."""


Off = Annotated[Literal[False], BeforeValidator(lambda value: False if value == "false" else value)]
"""`false`; scalars of the file are texts."""
OFF_OR_FALSE: Final = BeforeValidator(lambda value: "off" if value == "false" else value)
"""Annotates a key with the value `off`, of which YAML 1.1, as Helm reads it, makes `false`."""


class OrText:
    """Annotates a mapping with a short form as text, for the JSON Schema.

    Args:
        texts: The allowed texts; without them every text is allowed.
    """

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of the text or the mapping."""
        text = {"enum": list(self._texts)} if self._texts else {"type": "string"}
        return {"anyOf": [text, handler(schema)]}


def as_list(value: object) -> object:
    """Return one value as a list; a list, and nothing, as they are."""
    return value if value is None or isinstance(value, list | tuple) else [value]


# The loader keeps every scalar as text, so `version: 2` is "2". Editors must not mark it.
_SCALAR = {"$comment": "text", "type": ["string", "number", "boolean"]}
Scalar = Annotated[Text, WithJsonSchema(_SCALAR)]
FullScalar = Annotated[FullText, WithJsonSchema(_SCALAR)]
HeaderValue = Annotated[
    str,
    text_parser(parse_header_value, str),
    WithJsonSchema({**_SCALAR, "$comment": "header value"}),
]
"""The value of a header that the gateway sends: printable ASCII."""
FieldName = Annotated[str, StringConstraints(pattern=HEADER_NAME, max_length=255)]
"""The name of a header, with its capitals."""
_LIST = WithJsonSchema(
    {
        "$comment": "texts",
        "anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}],
    }
)
Names = Annotated[tuple[Text, ...], BeforeValidator(as_list), _LIST]
FullNames = Annotated[tuple[FullText, ...], BeforeValidator(as_list), _LIST]
"""Names, or patterns of names, none of which is blank."""
HeaderNames = Annotated[tuple[HeaderName, ...], BeforeValidator(as_list), _LIST]

NameKind = Literal[
    "client", "group", "tier", "label", "claim", "issuer", "listener", "upstream", "route", "model",
    "protocol",
]  # fmt: skip


class NameOf:
    """Annotates a key whose names, or patterns of names, another part of the file defines.

    Of a mapping the keys are the names.

    Args:
        kind: What has such a name.
        prefix: What the names begin with in this key; other values are no names.
    """

    def __init__(self, kind: NameKind, prefix: str = "") -> None:
        self.kind = kind
        self.prefix = prefix
