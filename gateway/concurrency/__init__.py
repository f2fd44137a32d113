"""Timers, timeouts and limits that know no protocol and no policy.

Start with `timeouts.py`: timeouts of tasks, timers of connections, and many deadlines on one timer.
"""
