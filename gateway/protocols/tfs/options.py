"""The options that a listener or an upstream may set.

Source: docs/protocols/tensorflow-serving.md, "11. Configuration".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.wire.options import Reader, read_values, text

DEFAULT_SIGNATURE: Final = "serving_default"
TENSORFLOW, KSERVE = "tensorflow", "kserve"


@dataclass(frozen=True, slots=True, kw_only=True)
class TfsOptions:
    """The options, typed.

    Attributes:
        signature: Upstream: the signature that calls name, and whose tensors the metadata have.
    """

    signature: str = DEFAULT_SIGNATURE


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_options(options)
    return options


def read_options(options: Mapping[str, Any]) -> TfsOptions:
    """Return *options*, typed.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return TfsOptions(**read_values("tfs", _READERS, options))


_READERS: Final[Mapping[str, Reader]] = {
    "signature": text,
}
