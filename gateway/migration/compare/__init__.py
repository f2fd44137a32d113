"""Compares replies of two servers, tensor by tensor. Read `replies.py` first, then `tensors.py`.

Pure: it knows the IR only, does no I/O, and reads no clock. `rules.py` has the rules of an output,
`statistics.py` what a number of mismatches says, and `conditions.py` the conditions of `--fail-if`.
"""
