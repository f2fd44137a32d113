"""Wiring of migrations: their targets, and the cut-overs from the old to the new ones.

`targets.py` says what of a configuration is refused. `controller.py` and `leader.py` decide in the
leading process, `shifts.py` belongs to the serving processes, and `replicas.py` to several
gateways. `interfaces.py` has what the leader needs of others. The processes that compare replies
are in `gateway/migration/mirror`.
"""
