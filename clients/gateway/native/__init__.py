"""Headrace's own API, beside OpenAI's.

``job_body`` is a request as the queue takes it, ``request_view`` its state and result, ``events`` its deltas
and ``done`` as JSON with their positions, and ``socket_session`` submits, follows and cancels requests over
one WebSocket.
"""
