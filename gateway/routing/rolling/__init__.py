"""Rolling loads: a model is loaded at one endpoint after the other. Begin at `layer.py`.

`layers.py` describes its layers, `settings.py` has the keys.
"""
