"""Scheduling, paged KV cache and text, without Redis, asyncio or device code."""
