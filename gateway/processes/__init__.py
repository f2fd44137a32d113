"""Processes that this one starts, and the channel to each of them.

Read `worker_process.py` first: the process as its parent sees it. `channel.py` has the messages
between both. `reply_watch.py` ends a process that hangs, and `restart_policy.py` says when one that
died is started again. `worker_slot.py` has the number of a process and its share of limits.
What the processes do is in `gateway.app.workers` and `gateway.shadow`.
"""
