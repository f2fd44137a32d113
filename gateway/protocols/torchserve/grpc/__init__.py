"""TorchServe over gRPC.

Read `codec.py` first: `messages.py` has the messages with the bytes of bodies, which stay views.
"""
