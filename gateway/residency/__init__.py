"""Residency: more models than a server has memory for. Begin at `plan.py`.

`plan.py` has the models of one server and who wants them, and `steps.py` decides what is loaded
and unloaded next. `controller.py` acts, by what `index.py` knows of the server. `layer.py` stands
before an upstream, with `homes.py` and `sequences.py`; `local.py` stands before the models of the
gateway. `settings.py` has the keys, and describes both layers. The gateway finds all of it by
`extension.py`; operators pin and evict by `parts.py` and `admin`.
"""
