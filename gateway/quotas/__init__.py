"""Quotas: how much of something clients may use in a time.

Begin with `budgets`, which count, and `layer`, which charges them for calls. `leases` divide the
budgets of one machine among its processes, and `store` those of several gateways. `parts` has what
runs in the processes of a gateway, which finds all of it by `extension`.
"""
