"""TensorRT v1 over gRPC.

Start with `codec.py`; `scan.py` reads messages without a copy.
"""
