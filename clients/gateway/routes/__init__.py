"""The gateway's routes, one subject a file."""
