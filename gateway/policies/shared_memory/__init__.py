"""Shared memory regions: disabled, forwarded to upstreams, or copied by the gateway.

Read `policy.py` first: the layer and its modes. `forwarded.py` has the mode that forwards regions;
`regions.py` opens, reads and writes the segments.

Shared memory: codecs handle references only. One layer (`policies/shared_memory`) refuses them,
forwards them to the upstreams, or copies the tensors. It never maps a segment into memory, because
its owner could shrink it and crash the process.
"""
