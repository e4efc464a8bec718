"""Durable tasks that outlive a gateway.

``schedule`` keeps the tasks of one kind in Redis, by due time, and leases them to one gateway at a time;
``work_loop`` takes due tasks and runs a limited number at once. Batches and webhooks are such tasks.
"""
