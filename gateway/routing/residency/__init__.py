"""Residency: more models than a server has memory for. Begin at `plan.py`.

`plan.py` decides, `controller.py` acts at one server, `layer.py` stands before an upstream, and
`settings.py` has the keys.
"""
