"""Shared memory regions: disabled, forwarded to upstreams, or copied by the gateway.

Read `policy.py` first: the layer and its modes. `forwarded.py` has the mode that forwards regions;
`regions.py` opens, reads and writes the segments.
"""
