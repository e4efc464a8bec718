"""Tensor operations, each with a Triton and a torch implementation. Knows nothing above it."""
