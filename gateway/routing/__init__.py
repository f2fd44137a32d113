"""Which service answers a call: matching, balancing, and answers about the server itself."""
