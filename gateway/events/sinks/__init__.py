"""The sinks of events, in the shadow process.

`queue.py` sends the events of one sink again and again, `form.py` and `writer.py` write them, and
`opening.py` opens what they are sent to.
"""
