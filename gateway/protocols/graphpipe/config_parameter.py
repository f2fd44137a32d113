"""GraphPipe's `config`, opaque bytes of a request, to parameters of the IR and back.

One parameter has all of the config, so that it is forwarded unchanged.  From a JSON object, the
settings that every protocol has are read too.  No config is an error.

Source: docs/protocols/graphpipe.md, "4. Inference requests".
"""

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.ir.context import Parameter, Parameters
from gateway.ir.errors import InvalidRequest, MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.wire.json.values import load_json

CONFIG: Final = "graphpipe_config"
"""The parameter with a config that is UTF-8 text."""

CONFIG_BASE64: Final = "graphpipe_config_base64"
"""The parameter with any other config."""

_JSON_OBJECT: Final = 0x7B
_TIMEOUT_MS: Final = "timeout_ms"
_MOST: Final = (1 << 53) - 1
# Parameters with a meaning in other protocols, which a config may not set.
_RESERVED: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)
_RESERVED_PREFIXES: Final = ("triton_", "graphpipe_")


@dataclass(frozen=True, slots=True)
class ConfigParameter:
    """The settings in a config.

    Attributes:
        priority: 0 for the model's default.
        timeout_s: Of the whole call; None for none.
        parameters: The config itself, and the entries of its `parameters`.
    """

    id: str = ""
    priority: int = 0
    timeout_s: float | None = None
    parameters: Parameters = field(default_factory=dict)


NO_SETTINGS: Final = ConfigParameter()


def read_config(config: memoryview, limits: MessageLimits) -> ConfigParameter:
    """Return the settings in *config*; never raises, whatever it contains."""
    if not config:
        return NO_SETTINGS
    parameters: dict[str, Parameter] = {}
    try:
        parameters[CONFIG] = str(config, "utf-8")
    except UnicodeDecodeError:
        parameters[CONFIG_BASE64] = base64.b64encode(config).decode()
    found = _object(config, limits)
    parameters.update(_scalars(found.get("parameters"), limits))
    timeout_ms = _whole(found.get(_TIMEOUT_MS))
    return ConfigParameter(
        id=_id(found.get("request_id"), limits),
        priority=_whole(found.get("priority")),
        timeout_s=timeout_ms / 1000 or None,
        parameters=parameters,
    )


def write_config(parameters: Parameters) -> bytes:
    """Return the config that *parameters* contain; empty when they contain none.

    Raises:
        InvalidRequest: It is not text, or not base64.
    """
    text = parameters.get(CONFIG)
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    coded = parameters.get(CONFIG_BASE64)
    if isinstance(coded, str):
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"parameter {CONFIG_BASE64!r} is not base64: {error}") from error
    for name, value in ((CONFIG, text), (CONFIG_BASE64, coded)):
        if value is not None:
            raise InvalidRequest(f"parameter {name!r} is {value!r}: expected text")
    return b""


def _object(config: memoryview, limits: MessageLimits) -> dict[str, Any]:
    """Return *config* as a JSON object; an empty one when it is something else."""
    if config[0] != _JSON_OBJECT or len(config) > limits.json_bytes:
        return {}
    try:
        found = load_json(config, "the config")
    except MalformedMessage:  # a config that begins like JSON may be something else
        return {}
    return found if isinstance(found, dict) else {}


def _scalars(found: Any, limits: MessageLimits) -> list[tuple[str, Parameter]]:
    if not isinstance(found, dict) or len(found) > limits.parameters:
        return []
    return [
        (name, value)
        for name, value in found.items()
        if isinstance(value, bool | int | float | str)
        and name not in _RESERVED
        and not name.startswith(_RESERVED_PREFIXES)
    ]


def _whole(value: Any) -> int:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
    return value if usable else 0


def _id(value: Any, limits: MessageLimits) -> str:
    usable = (
        isinstance(value, str) and value.isprintable() and len(value.encode()) <= limits.name_bytes
    )
    return value if usable else ""
