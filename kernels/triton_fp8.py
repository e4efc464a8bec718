"""float8_e4m3fn by integer arithmetic, for GPUs (and the interpreter) that do not convert it."""

# Kernels are written in Triton's language, which type checkers take for Python: no parameter has a Python
# type, and operators, ranges and constants mean something else.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(codes):
    """uint8 codes as float16, which holds each exactly. The codes of NaN become 480 or -480.

    Put where float16 has its exponent and mantissa, the bits mean a number 2**8 too small, subnormals
    included.
    """
    wide = codes.to(tl.uint16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def encode_e4m3(x):
    """float32 as uint8 codes: nearest, ties to even; saturates at 448, NaN stays NaN."""
    magnitude = tl.minimum(tl.abs(x), 448.0)
    bits = magnitude.to(tl.int32, bitcast=True)
    # Round the mantissa to its first 3 bits, then shift the exponent's bias from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Numbers near 2**14 are 2**-9 apart, as subnormal codes are: the addition rounds.
    subnormal = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0.015625, subnormal, normal)
    code = tl.where(x != x, 0x7F, code)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)
