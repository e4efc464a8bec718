"""Commands that speak to the queue."""
