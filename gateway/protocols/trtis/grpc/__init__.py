"""TensorRT v1 over gRPC.

Start with `codec.py`.
"""
