"""Transports of our own: sans-I/O cores of HTTP and gRPC, and servers and clients on them."""
