"""Several worker processes that share the same addresses, and their supervisor.

Read `supervisor.py` first. The supervisor serves no traffic: it reserves the addresses, starts and
restarts the workers, forwards signals to them, and serves the admin pages with the metrics of all.
Each worker (`worker.py`) runs a complete gateway and talks to the supervisor over a channel of
`gateway.app.processes`.
"""
