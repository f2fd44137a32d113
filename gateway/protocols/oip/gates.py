"""Calls that a listener does not pass on unless it is told to, and the extensions it advertises.

What is off is refused as by a server that lacks it: 501 and UNIMPLEMENTED.

Source: dossier, sections 1, 10 and 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.ir.calls import Call, ModelConfigRequest, RepositoryIndexRequest
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.protocols.oip.options import Extensions

# The option of each call that is off by default, and what it is called.
_GATES: Mapping[type[Call[Any]], tuple[str, str]] = {
    ModelConfigRequest: ("model_configuration", "model configuration"),
    RepositoryIndexRequest: ("repository_index", "the index of models"),
}

# Triton's name of what each option switches on.
_ADVERTISED = (("model_configuration", "model_configuration"),)

_OFF = (False, "off")


def check_allowed(call: Call[Any], extensions: Extensions) -> None:
    """Refuse a call that the listener's options do not allow.

    Raises:
        Unsupported: It is switched off.
    """
    found = _GATES.get(type(call))
    if found is not None and getattr(extensions, found[0]) in _OFF:
        raise Unsupported(f"{found[1]} is not enabled here (option {found[0]})", model=call.model)


def advertised(reply: ServerMetadata, extensions: Extensions) -> ServerMetadata:
    """Return a server's metadata with the extensions that are switched on here."""
    names = [name for option, name in _ADVERTISED if getattr(extensions, option) not in _OFF]
    every = tuple(dict.fromkeys((*reply.extensions, *names)))
    return ServerMetadata(reply.name, reply.version, every)
