"""gRPC on the gateway's own HTTP/2: servers, clients, health and reflection.

Start with `server_call.py` (one call at a server) or `client_call.py` (one call to an upstream).
"""
