"""What is common to all that is done with calls after their replies, in the shadow process.

A serving process makes records of calls with `sender.py`, and sends them as `packets.py` over a
socket pair with `packet_sender.py`; the shadow process reads them with `inbox.py`. It writes files
and waits for other servers, so that the loop that serves never does. `process.py` is its main
module, with a `ShadowPart` of each extension in it. `keeper.py` starts it, and starts it again when
it dies. It also has the socket pairs, which outlive both ends. `draw.py` says which calls are
chosen, and `objects.py` writes to object stores. Nothing here knows who does what with a call.
"""
