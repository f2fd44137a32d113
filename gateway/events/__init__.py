"""Payload events: inferences with their replies as CloudEvents, sent to sinks of other people.

`settings.py` has the keys, and `extension.py` is what the gateway finds. In a serving process
`tap.py` chooses calls with `choice.py`, and `outbox.py` sends them to the shadow process and counts
them in `books.py`. There `hub.py` receives them, and gives each of the `sinks` its events. Only the
settings are imported without the key.
"""
