"""Quotas: how much of something clients may use in a time.

Begin with `budgets`, which count, and `layer`, which charges them for calls. `leases` divide the
budgets of one machine among its processes.
"""
