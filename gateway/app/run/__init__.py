"""Starts, reloads and stops a gateway in one process. Read `gateway.py` first."""
