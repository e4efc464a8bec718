"""Loading: from a folder or hub id to a model that can be served.

``loader`` reads the weights with transformers, onto the device, and the tokenizer that ``text`` encodes
with; ``servable`` refuses architectures that cannot run over a paged cache and finds the KV heads of each
layer. GGUF files are converted (``gguf_file``, ``gemma3_gguf``), as for the model of the demonstration
(``demo_model``).
"""
