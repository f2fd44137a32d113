"""The protobuf form of a GrpsMessage.

Start with `message.py`; `packed_integers.py` reads and writes arrays of varints.
"""
