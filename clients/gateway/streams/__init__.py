"""Event streams, independent of the format of their events.

``slots`` limits how many are open and ends them when the gateway drains, ``merge`` turns the events of
several requests into one sequence with heartbeats, ``position`` is the place in a stream that an event id
names, ``delivery`` counts tokens and cancels abandoned requests, and ``sse`` sends frames and notices a
client that has left or stalled.
"""
