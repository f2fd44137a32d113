"""Names with several addresses of which an upstream uses one, as `resolve: first` does.

A headless Service of Kubernetes is such a name: all calls go to one of its pods. `gateway validate`
and the log of a start say so. Both look the names up, and wait for no name server for long.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

import structlog

from gateway.config.models import Config
from gateway.config.yaml_tree import Finding
from gateway.transports.net.host_addresses import is_service
from gateway.transports.net.look_up import is_address, look_up

log = structlog.get_logger(__name__)

_WAIT_S: Final = 1.0


async def unused_addresses(config: Config) -> list[Finding]:
    """Return a warning for each name of which one of several addresses is used."""
    names = list(_names(config))
    counts = await asyncio.gather(*(_count(host) for _, host in names))
    found: list[Finding] = []
    for (upstream, host), count in zip(names, counts, strict=True):
        if count > 1:
            message = (
                f"{host!r} has {count} addresses, and 'first' uses one of them at a time; "
                "expected 'all', which balances calls over all of them"
            )
            found.append((("upstreams", upstream, "resolve"), message))
    return found


async def log_unused_addresses(config: Config) -> None:
    """Log what `unused_addresses` finds."""
    for path, message in await unused_addresses(config):
        log.warning("one of several addresses is used", upstream=path[1], reason=message)


def _names(config: Config) -> Iterator[tuple[str, str]]:
    for upstream, each in config.upstreams.items():
        hosts = dict.fromkeys(url.host for url in each.all_urls if url.host)
        for host in hosts if each.resolve == "first" else ():
            if not is_address(host) and not is_service(host):
                yield upstream, host


async def _count(host: str) -> int:
    """Return how many addresses of one family a name has: a server often has one of each."""
    try:
        async with asyncio.timeout(_WAIT_S):
            found = await look_up(host)
    except OSError:  # unknown here, or the name server is silent: a TimeoutError is one
        return 0
    return max(Counter(ip_address(each).version for each in found).values(), default=0)
