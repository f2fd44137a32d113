"""Rolling loads: a model is loaded at one endpoint after the other. Begin at `layer.py`.

`settings.py` has the keys, and describes the layers.
"""
