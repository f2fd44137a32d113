"""Limits of a route: concurrency, deadline and retries.

Start with `policy.py`: one layer that applies them in this order.
"""
