"""Completion: adds the names, datatypes and shapes that the codecs on both sides of a call need.

Read `policy.py` first: the layer and the order of its steps. Each other file has one step.
"""
