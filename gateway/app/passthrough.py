"""The rules of a listener for requests to paths of no protocol, which go to an HTTP upstream."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gateway.config.models import PassthroughConfig
from gateway.ir.errors import TooLarge
from gateway.ir.limits import MessageLimits, check_count
from gateway.protocols.oip.json.parse import read_value
from gateway.transports.http.passthrough import PassthroughRules

# KServe needs 0.2 ms for each row of a V1 request, and serves no other request meanwhile.
MAX_CONTAINERS: Final = 2_000
_SPACE: Final = b" \t\r\n"


def passthrough_rules(config: PassthroughConfig, limits: MessageLimits) -> PassthroughRules:
    """Return the passthrough rules of a listener."""
    return PassthroughRules(config.allow, config.post, partial(check_json_body, limits))


def check_json_body(limits: MessageLimits, body: memoryview) -> None:
    """Reject a JSON body that would occupy a server for a long time; accept all other bodies.

    Raises:
        MalformedMessage: The body begins like JSON but is not valid.
        TooLarge: It is too deep, or has too many keys, lists and objects.
    """
    if not bytes(body[:64]).lstrip(_SPACE).startswith((b"{", b"[")):
        return
    pending: list[Any] = [read_value(body, "the body", limits)]
    containers = 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            check_count("keys", len(value), limits.json_keys, "json_keys")
            values: Any = value.values()
        else:
            values = value
        containers += 1
        if containers > MAX_CONTAINERS:
            raise TooLarge(f"the body has more than {MAX_CONTAINERS} lists and objects")
        pending += [each for each in values if isinstance(each, dict | list)]
