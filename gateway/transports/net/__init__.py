"""Sockets, TLS, name resolution and back-pressure, for every transport.

Start with `sockets.py`.
"""
