"""Processes of a gateway: this one, those that it starts, and the channel to each of them.

Read `worker_process.py` first: a process as its parent sees it. `channel.py` has the messages
between both. `reply_watch.py` ends a process that hangs, and `restart_policy.py` says when one that
died is started again. `worker_slot.py` has the number of a process and its share of limits.
`process.py` sets allocator and garbage collector of this process, and `signals.py` has its signals.
What the processes do is in `gateway.app.workers` and `gateway.shadow`.
"""
