"""The reference make of the transports: aiohttp and grpcio."""
