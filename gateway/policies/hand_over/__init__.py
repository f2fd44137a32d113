"""Large tensors handed to a Triton on this machine in system shared memory.

Read `policy.py` first: it decides per call, and registers the regions with the server of one
endpoint. `pool.py` has the regions of the process and the pieces that messages get of them.

Transports receive large messages into pieces of the pool (`MemoryBudget.pool`), and the call to the
server then names region, offset and size. One rule keeps tensors right: a byte is written a second
time only after the server has replied to every call that named it. Memory of a call that ended in
any other way is never written again: its region is replaced, and the kernel frees it when the
server no longer maps it.
"""
