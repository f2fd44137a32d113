"""Wiring of migrations: which targets they have, and what of a configuration is refused.

Begin with `targets.py`. The processes that compare replies are in `gateway/app/shadow`.
"""
