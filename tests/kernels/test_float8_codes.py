"""float8_e4m3fn by integer arithmetic is exact."""

import torch
import triton
import triton.language as tl

from headrace.kernels.triton_fp8 import decode_e4m3, encode_e4m3


@triton.jit
def decode_kernel(codes, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, decode_e4m3(tl.load(codes + at)))


@triton.jit
def encode_kernel(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, encode_e4m3(tl.load(x + at)))


def test_every_code_is_decoded() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    out = torch.empty(256, dtype=torch.float16)
    decode_kernel[(1,)](codes, out, 256)
    expected = codes.view(torch.float8_e4m3fn).half()
    number = ~expected.isnan()
    assert number.sum() == 254
    assert torch.equal(out[number], expected[number])


def test_numbers_of_all_magnitudes_are_encoded_as_torch_does() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[~every.isnan()]
    between = (every[:, None] + every) / 2
    magnitudes = 2.0 ** torch.randint(-14, 10, (1 << 12,))
    x = torch.cat([torch.randn(1 << 12) * magnitudes, every, between.flatten()])
    x = torch.cat([x, -x, torch.tensor([0.0, -0.0, 464.0, 1e30, -1e30, 2.0**-10, 1.5 * 2.0**-9])])
    x = torch.nn.functional.pad(x, (0, (1 << 18) - x.numel()))
    out = torch.empty(x.shape, dtype=torch.uint8)
    encode_kernel[(1,)](x, out, 1 << 18)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(out, expected)
