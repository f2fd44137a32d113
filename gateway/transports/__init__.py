"""Transports: they move wire messages over sockets, and do not interpret their content.

Start with `contract.py`: the interfaces of servers and clients. Each carrier has a folder. A flood
of HTTP/2 frames is stopped in `http2/flood_control.py`.
"""

import os

# The C core of gRPC writes a line to stderr for each peer that disconnects and each failed
# handshake, so strangers could fill the log. It also reports them as a status. It reads this
# variable at its first import, so the line stands before any import of grpc.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
