"""The tensor IR: what every protocol is translated into and out of.

Ground floor: knows the standard library, numpy and msgspec, nothing else of the gateway.
"""
