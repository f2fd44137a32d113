"""Transports move wire messages over sockets and read none of them; asyncio lives here."""
