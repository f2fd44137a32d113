"""Several worker processes that share the same addresses, and their supervisor.

Read `supervisor.py` first. The supervisor serves no traffic: it starts and restarts the workers,
forwards signals to them, and serves the admin pages with the metrics of all. It binds each address
without listening, so that no other program takes it (`transports/net/port_reservation`). Each
worker (`worker.py`) runs a complete gateway without the admin pages. It talks to the supervisor
over a channel of `gateway.processes`, which brings its setup and asks for readiness and
metrics.

The supervisor sends a ping every two seconds, whose reply carries nothing: it is the proof of life
(`processes/reply_watch`). It requests metrics regularly and for each page, and keeps those of
workers that exited (`telemetry/aggregation`). Metrics are read, sent and written in pieces
(`telemetry/families`), and other work of the event loop runs between them (`concurrency/slices`).
Configurations that need one process are refused at start (`app/check/worker_limits`), or by
`policies/reject_sequences` where only a request shows it.
"""
