"""Several processes behind the same addresses, and the supervisor that keeps them there.

The supervisor is the process that was started. It serves no traffic: it holds the addresses, starts
the workers, starts again those that die, passes on what it is told to do, and answers operators for
all of them. A worker is a gateway as it is without workers, but for its place in the row
(`place`) and the line to its supervisor (`channel`).
"""
