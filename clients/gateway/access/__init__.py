"""API keys, tenants and their limits.

An API key names a caller: a tenant with a rate, a highest priority and a number of streams. ``api_keys``
reads the file of keys, ``auth_middleware`` refuses a request without a valid one before any route sees it,
``dependencies`` hands the caller to the routes, ``rate_limit`` counts its requests in Redis, and
``tenant_ids`` makes ids that prove their owner, so that no record of ownership is needed.
"""
