"""Open Inference over HTTP: inference, generate, management and extensions.

Start with `codec.py`; `paths.py` has the routes.
"""
