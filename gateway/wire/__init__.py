"""Messages as values, the interface of frontends, and what several protocols share; no I/O.

Read `http.py`, `grpc.py` and `stream.py` first, for the three kinds of messages. `api/protocol.py`
has the interface of codecs.
"""
