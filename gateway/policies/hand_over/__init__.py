"""Large tensors handed to a Triton on this machine in system shared memory.

Read `policy.py` first: it decides per call, and registers the regions with the server of one
endpoint. `replies.py` knows which outputs can come back there. `pool.py` has the regions of the
process and the pieces that messages get of them.

Transports receive large messages into pieces of the pool (`MemoryBudget.pool`), and the call to the
server then names region, offset and size. Outputs get pieces of their own, and the reply has views
of them. One rule keeps tensors right: a byte is written a second time only after the server has
replied to every call that named it, and the last view of it is gone. Memory of a call that ended in
any other way is never written again: its region is replaced, and the kernel frees it when the
server no longer maps it.
"""
