"""Customised grps routes: JSON documents of any form, mapped by the configuration.

Start with `routes.py`: what a route reads and writes.  `json_path.py` finds and writes values.
"""
