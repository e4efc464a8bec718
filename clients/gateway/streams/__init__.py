"""What all event streams share, whatever format their events have.

``slots`` limits how many are open and ends them when the gateway drains, ``merge`` turns the events of
several requests into one sequence with heartbeats, ``position`` is the place in a stream that an event id
names, ``delivery`` counts tokens and cancels abandoned requests, and ``sse`` sends frames and notices a
reader that has left or stalled.
"""
