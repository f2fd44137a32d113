"""HTTP/2: frames, header blocks, streams, flow control and protection from floods.

Start with `connection.py`, which does no I/O. `protocol.py` joins it to a socket. The budgets
are in `flood_control.py`. Plain HTTP requests, which are no gRPC calls, are in `request_stream.py`;
the connection that serves both is `transports/grpc/server_connection.py`.
"""
