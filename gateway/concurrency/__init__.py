"""Timers, timeouts and limits that know no protocol and no policy.

Start with `timeouts.py`: what ends a block, a call or a wait.  `timer_wheel.py` holds many of them
cheaply.
"""
