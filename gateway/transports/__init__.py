"""Transports: they move wire messages over sockets, and do not interpret their content.

Start with `contract.py`: the interfaces of servers and clients. Each carrier has a folder. A flood
of HTTP/2 frames is stopped in `http2/flood_control.py`.

A hop costs one read and one write. Small requests register nothing with the event loop, and pause
nothing. All writes of one turn of the loop share a system call. Timeouts are entries on a timer
wheel. A request that is complete, plain and within all limits takes a fast path. It passes the same
checks at once, without the objects that waiting needs. The same holds for responses of upstreams.

Request heads, response heads and HTTP/2 header blocks are cached by their bytes. Output is
assembled from cached parts, and only what differs is written anew: length, id, remaining time.
Parsed values are kept with the cached headers (`Headers.parsed_with`).

Calls leave no reference cycles, even if they fail (`tests/integration/test_garbage.py`). A cycle
would hold a body until the garbage collector runs.

A native HTTP server also accepts HTTP/2. A connection that begins with the preface of HTTP/2, or
whose TLS handshake chose it, goes to the HTTP/2 server of the listener. A header block with a gRPC
content type is a call (`grpc/server_call`). Any other one is a plain request
(`http2/request_stream`), which the exchange of HTTP/1 answers.

From SIGTERM on, HTTP/1 responses say `Connection: close`, and HTTP/2 connections get GOAWAY. After
`pre_stop` a server stops listening: the kernel drops new handshakes, and the accept queue is
emptied (`net/accept_backlog`). With `lifecycle.hand_over` another gateway listens on the same
addresses meanwhile, and clients lose nothing.
"""

import os

# The C core of gRPC writes a line to stderr for each peer that disconnects and each failed
# handshake, so strangers could fill the log. It also reports them as a status. It reads this
# variable at its first import, so the line stands before any import of grpc.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
