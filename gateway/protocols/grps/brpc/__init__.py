"""grps over brpc (baidu_std): framing, compression and the codec.

Start with `codec.py`.
"""
