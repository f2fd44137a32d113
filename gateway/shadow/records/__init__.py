"""Records of calls with their replies, and what of them is withheld.

`records.py` has the form of a recorded call, and `privacy.py` what of it is written. `transfer.py`
moves it to the shadow process. Nothing here knows a protocol.
"""
