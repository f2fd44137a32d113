"""Routing: which service handles a call, load balancing, and calls to the gateway itself.

Read `router.py` first, then `balance.py` (targets of a route) and `endpoints.py` (of an upstream).
"""
