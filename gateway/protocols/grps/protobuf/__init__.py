"""The protobuf form of a GrpsMessage.

Start with `message.py`.
"""
