"""Passes over a loaded model that make it faster and change nothing else.

``fusion`` replaces layers by ones of fewer kernels, after it has compared the two on random inputs:
attention (``fused_attention``), norms and feed-forward layers (``fused_layers``), whole decoder layers
(``fused_decoder``). On a CPU, ``packed_linear`` replaces linear layers by ones with packed weights
(``packed_weight``).
"""
