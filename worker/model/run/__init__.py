"""Running: from an iteration to sampled tokens.

``runner`` implements the engine's ``Runner``: ``flat_batch`` lays out the iteration's chunks, ``transfer``
uploads them, one forward pass attends over the paged cache (``attention``, ``kv_tensors``, ``kv_scales``)
and ``sampler`` samples one token for each chunk that reaches the end of its sequence. Decode steps replay
CUDA graphs (``decode_graphs``, ``decode_inputs``, ``recording``). ``device_memory`` measures the memory
left for the cache, and ``device_errors`` translates what torch and Triton raise.
"""
