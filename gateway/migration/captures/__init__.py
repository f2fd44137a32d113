"""Recordings of calls with their replies: SQLite files, one for each segment of a capture.

`gateway/shadow/records` has the form of a recorded call. `schema.py` is the file format, which
`segment_writer.py` writes and `segment_reader.py` reads. A capture is a directory of segments:
`directory.py` names them, and `capture.py` reads one. While a gateway serves, `sampling.py` chooses
calls, and `recorder.py` writes them in the shadow process. Nothing here knows a protocol.
"""
