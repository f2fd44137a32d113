"""Limits that follow the latency or the refusals of a server."""
