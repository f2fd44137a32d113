"""The intermediate representation (IR) of calls, replies and tensors.

Every protocol is translated to and from it. It imports no other package of the gateway. Read
`calls.py` first, then `tensors/tensor.py`.
"""
