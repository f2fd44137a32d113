"""Customised grps routes: JSON documents of any form, which the configuration maps to tensors.

Start with `routes.py`; `json_path.py` finds and writes values.
"""
