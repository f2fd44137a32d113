"""The protobuf form of a GrpsMessage.

Start with `message.py`; `packed_integers.py` reads arrays of varints.
"""
