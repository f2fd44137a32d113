"""Completion: each side of a call gets the names, datatypes and shapes that its protocol needs.

Start with `policy.py`: the layer and the order of its steps.  The other files have one step each.
"""
