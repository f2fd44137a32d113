"""Transports move wire messages over sockets and read none of them; asyncio lives here."""

import os

# The C core of gRPC writes a line to stderr for each peer that goes away and each failed handshake,
# which is for strangers to cause; all it says reaches us as a status too. It looks when it is first
# imported, so this stands before any import of grpc.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
