"""Names and versions of models, as TensorRT v1 allows them over both carriers."""

from functools import partial
from typing import Final

from gateway.api.protocol import named_model
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, Unsupported
from gateway.ir.limits import MessageLimits, check_name

_INT64_END = 1 << 63


def checked_model(name: str, limits: MessageLimits) -> ModelRef:
    """Return the model that a client's message names.

    Raises:
        InvalidRequest, TooLarge: The name is empty, or is not allowed.
    """
    if not name:
        raise InvalidRequest("the request names no model")
    check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    return ModelRef(name)


required_model: Final = partial(named_model, "TensorRT v1")


def checked_version(model: ModelRef) -> str:
    """Return the version of *model*, which v1 writes as a 64-bit number.

    Raises:
        Unsupported: The version is not such a number.
    """
    version = model.version
    digits = version.isascii() and version.isdecimal() and len(version) <= len(str(_INT64_END))
    if not digits or int(version) >= _INT64_END:
        raise Unsupported(
            f"version of model {model.name!r} is {version[:40]!r}: TensorRT v1 expects a number",
            model=model,
        )
    return version
