"""Running and observing a gateway.

``serve`` listens, handles signals and drains; ``http_protocol`` chooses the HTTP parser, ``shutdown`` ends
what outlasts the grace period. ``access_log``, ``logs``, ``metrics`` and ``tracing`` record each request, and
``system_view`` shows queues and workers.
"""
