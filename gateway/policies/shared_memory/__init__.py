"""Shared memory regions: refused, forwarded to upstreams, or copied by the gateway.

Start with `policy.py`: the layer and its three modes.  `regions.py` opens and reads the segments.
"""
