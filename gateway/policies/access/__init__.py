"""Who may do what, and how much of it: permissions and quotas.

Begin with `rules`, which decides, and `authorise`, the layer that asks it.
"""
