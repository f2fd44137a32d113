"""Protobuf without its library, for speed. Read `wire_format.py` first, then `messages.py`."""
