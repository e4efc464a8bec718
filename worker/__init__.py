"""The process that owns the GPU."""
