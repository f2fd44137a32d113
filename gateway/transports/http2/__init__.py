"""HTTP/2 without I/O: frames, header blocks, streams, flow control and protection from floods.

Start with `connection.py`; `protocol.py` joins it to a socket, `flood_control.py` has the budgets.
"""
