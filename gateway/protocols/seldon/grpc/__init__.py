"""Seldon's protocol over gRPC: read `codec.py` first; `messages.py` and `values.py` scan bytes."""
