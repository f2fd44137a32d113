"""The reference implementation of the transports: aiohttp and grpcio."""
