"""The text format of protobuf, as TensorRT v1 headers use it.

Start with `parser.py`; `writer.py` writes the same format.
"""
