"""A DNS server for tests: it answers from a table that tests change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """Answers over UDP.

    Attributes:
        records: Texts of the records by name and type, such as ("triton.", "A"). A name without any
            record does not exist.
        ttl_s: Of all records.
        query_count: How many questions there were.
        port: Where it listens on 127.0.0.1.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 30
        self.query_count = 0
        self.port = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self.query_count += 1
        query = dns.message.from_wire(data)
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        (question,) = query.question
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        texts = self.records.get((name, kind), [])
        if texts:
            response.answer.append(dns.rrset.from_text_list(name, self.ttl_s, "IN", kind, texts))
        elif not any(record_name == name for record_name, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(response.to_wire(), addr)

    def resolver(self) -> dns.asyncresolver.Resolver:
        """Return a resolver that asks this server."""
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = self.port
        return resolver


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    """Run a DNS server."""
    loop = asyncio.get_running_loop()
    server = NameServer()
    transport, _ = await loop.create_datagram_endpoint(lambda: server, ("127.0.0.1", 0))
    server.port = transport.get_extra_info("sockname")[1]
    try:
        yield server
    finally:
        transport.close()
