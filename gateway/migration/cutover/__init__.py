"""Wiring of migrations: their targets, and the cut-overs from the old to the new ones.

`steps.py` decides, by the transitions of `states.py`. `leader.py` does what is decided for one
cut-over, and `controller.py` has all of a leading process. `shifts.py` belongs to the serving
processes, and `replicas.py` to several gateways. `interfaces.py` has what the leader needs of
others. `gateway/migration/targets.py` says what of a configuration is refused. The processes that
compare replies are in `gateway/migration/mirror`.
"""
