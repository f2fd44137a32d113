"""Payload events: inferences with their replies as CloudEvents, sent to sinks of other people.

`settings.py` has the keys. A serving process chooses calls with `choice.py` and counts them in
`books.py`. The shadow process has the rest: `hub.py` receives calls, `queue.py` sends the events of
one sink again and again, `form.py` writes them, and `sinks.py` opens what they are sent to.
`mirror/event_outbox.py` connects both ends. Nothing but `settings.py` is imported without the key.
"""
