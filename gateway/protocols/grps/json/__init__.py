"""The JSON form of a GrpsMessage.

Start with `message.py`.
"""
