"""Tensor Gateway: lets any inference client talk to any model server."""

__version__ = "0.1.0"
