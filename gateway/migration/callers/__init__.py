"""Who calls what, counted by every serving process, and the advice drawn from it."""
