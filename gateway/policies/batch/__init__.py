"""Dynamic batching: requests of several callers become one request to the model.

Start with `policy.py`: when a batch is dispatched.  `queue.py` holds the requests that wait,
`merge.py` joins them and splits the reply, `layers.py` makes equal requests look equal.
"""
