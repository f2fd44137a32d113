"""Messages as values, and the interface of codecs and frontends; no I/O and no protocol.

Read `codec.py` first, then `http.py`, `grpc.py` and `stream.py` for the three kinds of messages.
"""
