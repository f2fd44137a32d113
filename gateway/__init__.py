"""Tensor Gateway: a proxy between any inference client and any model server.

Read `app/run/gateway.py` first; ARCHITECTURE.md in the repository describes the packages.
"""

__version__ = "0.1.0"
