"""The JSON and binary forms of Open Inference tensors.

Start with `tensors.py`.  `templates.py` recognises a request that differs from an earlier one in
its elements only.
"""
