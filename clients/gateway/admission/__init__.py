"""Admission of requests to the queue.

``request_draft`` is a request before it has an id; ``admission`` checks it against the caller's rate, the
size of prompts and the models that ``worker_directory`` finds alive, and enqueues it; a queue that is full is
refused with the wait that ``drain_rate`` measures.
"""
