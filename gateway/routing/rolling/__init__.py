"""Rolling loads: a model is loaded at one endpoint after the other. Begin at `layer.py`."""
