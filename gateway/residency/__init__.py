"""Residency: more models than a server has memory for. Begin at `plan.py`.

`plan.py` has the models of one server and who wants them, `steps.py` decides what is loaded and
unloaded next, and `outcomes.py` notes what became of it. `controller.py` acts: with `index.py`,
`waiters.py` and `transfers.py`. `layer.py` stands before an upstream, with `homes.py`,
`sequences.py` and `questions.py`; `local.py` stands before the models of the gateway. `settings.py`
has the keys, and describes both layers.
"""
