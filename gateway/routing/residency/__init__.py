"""Residency: more models than a server has memory for. Begin at `plan.py`.

`plan.py` decides, and `controller.py` acts at one server. `layer.py` stands before an upstream,
`local.py` before the models of the gateway. `layers.py` describes both. `settings.py` has the keys.
"""
