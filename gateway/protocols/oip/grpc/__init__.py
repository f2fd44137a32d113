"""Open Inference over gRPC: inference, streams, management and extensions.

Start with `codec.py`.  `scan.py` and `decode.py` read messages, `encode.py` writes them.
"""
