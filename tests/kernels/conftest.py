"""Runs the Triton kernels in Triton's interpreter: they are ordinary Python then, on CPU tensors.

Triton reads the variable when a kernel is defined, so it is set before anything imports one.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"
