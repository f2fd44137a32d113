"""The JSON and binary forms of Open Inference tensors.

Start with `tensors.py`.  `templates.py` recognises a request that repeats an earlier one with other
elements.
"""
