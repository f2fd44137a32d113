"""Recordings of calls with their replies: SQLite files, one for each segment of a capture.

`records.py` has the form of a recorded call, and `privacy.py` what of it is written. `schema.py` is
the file format, which `segment_writer.py` writes and `segment_reader.py` reads. A capture is a
directory of segments: `directory.py` names them, and `capture.py` reads one. While a gateway
serves, `sampling.py` chooses calls, `transfer.py` moves them to the shadow process, and
`recorder.py` writes them there. Nothing here knows a protocol.
"""
