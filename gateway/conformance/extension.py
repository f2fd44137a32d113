"""The extension that brings the command `certify`, as the gateway finds it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.api.extension import Extension


class ConformanceExtension(Extension):
    """Asks a server whether it keeps its protocol."""

    name = "conformance"
    commands: Mapping[str, str] = MappingProxyType(
        {"certify": "gateway.conformance.command:certify"}
    )


EXTENSION: Final = ConformanceExtension()
