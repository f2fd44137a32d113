"""What a listener exposes to other machines, and whether `security.strict` forbids it."""

from collections.abc import Iterator
from typing import Final

import structlog

from gateway.config.models import ListenerConfig
from gateway.policies.shared_memory.layer import SHARED_MEMORY
from gateway.settings.units import Address, StreamAddress

log = structlog.get_logger(__name__)

_WITHOUT_TLS: Final = "can be reached from other machines without TLS"
_SHARED_MEMORY: Final = "lets other machines use this one's shared memory"


def exposure_risks(
    config: ListenerConfig, address: Address | StreamAddress
) -> Iterator[tuple[str, str]]:
    """Yield the risks of an address of a listener, each with its remedy; none for loopback."""
    if address.is_loopback:
        return
    if config.tls is None:
        yield _WITHOUT_TLS, "add 'tls'"
    if SHARED_MEMORY.of(config).mode != "off":
        yield _SHARED_MEMORY, "set 'shared_memory: off'"


def forbid_exposure(config: ListenerConfig, address: Address | StreamAddress) -> None:
    """Raise ValueError if an address of a listener has a risk."""
    for risk, remedy in exposure_risks(config, address):
        raise ValueError(
            f"listener {config.name!r} on {address} {risk}, which security.strict forbids; "
            f"{remedy}, or listen on 127.0.0.1"
        )


def warn_of_exposure(config: ListenerConfig, address: Address | StreamAddress) -> None:
    """Warn of the risks of an address. `check` forbids them with `security.strict`."""
    where = {"listener": config.name, "address": str(address)}
    for risk, _ in exposure_risks(config, address):
        if risk == _WITHOUT_TLS:
            log.warning("listener can be reached from other machines without TLS", **where)
        else:
            log.warning("listener lets other machines use this one's shared memory", **where)
