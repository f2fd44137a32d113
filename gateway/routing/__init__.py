"""Routing: which service handles a call, load balancing, and calls to the gateway itself.

Read `router.py` first, then `balance.py` (targets of a route) and
`balancing/endpoints.py` (of an upstream).

Configuration, statistics, load and unload, trace and log settings are calls too. The codec of a
listener refuses those that its options leave off (`extension_policy`). Questions about a model are
routed like inference. Load and unload go to every endpoint and target (`routing/broadcast`).
`ServerInfo` responds for the gateway itself, and `UpstreamQuestions` asks all upstreams.
`UsageStatistics` counts where a target does not. After a load, caches of the model are invalidated.
Unknown paths are an `OpaqueCall`: only the same codec reads its origin.
"""
