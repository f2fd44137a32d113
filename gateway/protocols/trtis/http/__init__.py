"""TensorRT v1 over HTTP: the paths under `/api`, with headers in protobuf text.

Start with `codec.py`; `upstream.py` is the client's side.
"""
