"""Limits of calls: concurrency, deadlines, retries, hedges and overload.

Start with `policy.py`: it acquires the slot, sets the deadline and applies the retries of a route.
`retry.py` decides whether a call is retried.
"""
