"""A transformers model as a runner of flat batches."""
