"""Webhooks: a POST to the client's URL when a request has ended.

``delivery`` keeps each webhook in a schedule in Redis and retries it until the receiver accepts it, ``url``
admits only origins that the operator allows, and ``signature`` signs by the Standard Webhooks specification.
"""
