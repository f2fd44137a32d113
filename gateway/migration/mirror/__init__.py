"""The shadow process: it writes captures, so that files never stop the loop that serves.

A serving process puts sampled calls into its `outbox.py`, which sends them as `packets.py` over a
socket pair, and drops what the socket does not take. `process.py` is the main module of the shadow
process. `keeper.py` starts it, and starts it again when it dies. It also has the socket pairs,
which outlive both ends.
"""
