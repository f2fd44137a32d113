"""Tensors: descriptions, datatypes and data, and their validation. Read `tensor.py` first."""
