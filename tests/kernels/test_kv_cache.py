"""Keys and values land in their slots and nowhere else, rotated and quantized as they should be."""

import random

import pytest
import torch

from headrace.kernels import HeadNorm, Implementation, rotate_and_write_kv, write_kv

BOTH = pytest.mark.parametrize("implementation", ["torch", "triton"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
FLOAT8 = torch.float8_e4m3fn


def rows(count: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Of magnitudes from the subnormal to the saturated numbers of float8; a slice of something wider."""
    wide = torch.randn(count, heads + 1, dim) * 10 ** torch.empty(count, heads + 1, 1).uniform_(-4, 3)
    return wide.to(dtype)[:, 1:]


def slots_for(count: int, slots: int) -> torch.Tensor:
    """Random, each at most once, with some rows of padding."""
    mapping = torch.randperm(slots)[:count]
    mapping[torch.rand(count) < 0.2] = -1
    return mapping


@BOTH
@DTYPES
@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize(("heads", "dim", "block_size"), [(1, 16, 4), (3, 80, 16), (2, 24, 1)])
def test_write(
    implementation: Implementation, dtype: torch.dtype, float8: bool, heads: int, dim: int, block_size: int
) -> None:
    key, value = rows(9, heads, dim, dtype), rows(9, heads, dim, dtype)
    scales = [torch.rand(heads) + 0.01 for _ in range(2)]
    caches = [torch.randn(20, heads, block_size, dim).to(FLOAT8 if float8 else dtype) for _ in range(2)]
    expected = [cache.float() for cache in caches]
    slots = slots_for(9, 20 * block_size)
    for row, slot in enumerate(slots.tolist()):
        for want, x, scale in zip(expected, (key, value), scales, strict=True):
            if slot >= 0:
                own = x[row].float()
                if float8:
                    own = (own / scale[:, None]).clamp(-448, 448).to(FLOAT8).float()
                want[slot // block_size, :, slot % block_size] = own
    options = {"key_scale": scales[0], "value_scale": scales[1]} if float8 else {}
    write_kv(key, value, caches[0], caches[1], slots, implementation=implementation, **options)
    for cache, want in zip(caches, expected, strict=True):
        assert torch.equal(cache.float(), want)


@BOTH
@DTYPES
@pytest.mark.parametrize(("dim", "rotated"), [(16, 16), (80, 20), (24, 24), (32, 8)])
@pytest.mark.parametrize("normalized", [False, True])
def test_rotate_and_write(
    implementation: Implementation,
    dtype: torch.dtype,
    dim: int,
    rotated: int,
    normalized: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that a program has one head, some of them, or all.
    monkeypatch.setattr("headrace.kernels.kv_cache.triton_rotate.PAIRS", random.choice([1, 32, 4096]))
    packed = torch.randn(7, 10, dim).to(dtype)
    query, key, value = packed.split([6, 2, 2], dim=1)
    weights = [torch.randn(dim).to(dtype) for _ in range(2)]
    norm = HeadNorm(weights[0], weights[1], eps=0.1, offset=random.choice([0.0, 1.0])) if normalized else None
    angles = torch.rand(7, rotated // 2) * 100
    cosine, sine = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
    caches = [torch.zeros(5, 2, 4, dim, dtype=dtype) for _ in range(2)]
    slots = slots_for(7, 20)

    def turn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        half = rotated // 2
        x = x.double()
        if norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * (weight.double() + norm.offset)
        pairs = torch.complex(x[..., :half].double(), x[..., half:rotated].double())
        turned = pairs * torch.polar(torch.ones_like(angles), angles).to(torch.complex128)[:, None]
        return torch.cat([turned.real, turned.imag, x[..., rotated:].double()], -1)

    result = rotate_and_write_kv(
        query, key, value, cosine, sine, caches[0], caches[1], slots, norm=norm, implementation=implementation
    )
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 4e-3, "atol": 4e-3}
    torch.testing.assert_close(result.double(), turn(query, weights[0]), **tolerance)
    want = [torch.zeros(5, 2, 4, dim, dtype=torch.float64) for _ in range(2)]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            want[0][slot // 4, :, slot % 4] = turn(key, weights[1])[row]
            want[1][slot // 4, :, slot % 4] = value[row].double()
    torch.testing.assert_close(caches[0].double(), want[0], **tolerance)
    assert torch.equal(caches[1].double(), want[1])


@BOTH
def test_rotating_into_float8_is_rotating_then_quantizing(implementation: Implementation) -> None:
    query, key, value = (rows(7, heads, 16, torch.float16) for heads in (4, 2, 2))
    cosine, sine = torch.randn(7, 16), torch.randn(7, 16)
    slots = slots_for(7, 20)
    options = {"key_scale": torch.rand(2) + 0.1, "value_scale": torch.rand(2) + 0.1}
    plain = [torch.zeros(5, 2, 4, 16, dtype=torch.float16) for _ in range(2)]
    small = [torch.zeros(5, 2, 4, 16).to(FLOAT8) for _ in range(2)]
    arguments = (query, key, value, cosine, sine)
    rotate_and_write_kv(*arguments, *plain, slots, implementation=implementation)
    rotate_and_write_kv(*arguments, *small, slots, implementation=implementation, **options)
    for whole, cache, scale in zip(plain, small, options.values(), strict=True):
        quantized = (whole.float() / scale[:, None, None]).clamp(-448, 448).to(FLOAT8)
        assert torch.equal(cache.float(), quantized.float())


def test_bad_arguments_are_named() -> None:
    key, cache = torch.randn(3, 2, 16), torch.zeros(4, 2, 4, 16)
    slots = torch.arange(3)
    for name, arguments in {
        "key": (key[0], key, cache, cache, slots),
        "value": (key, key[:2], cache, cache, slots),
        "key_cache": (key, key, cache[..., :8], cache, slots),
        "value_cache": (key, key, cache, cache[:2], slots),
        "slot_mapping": (key, key, cache, cache, slots.int()),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name}:"):
            write_kv(*arguments)
    strided = cache.transpose(1, 2).contiguous().transpose(1, 2)
    for name, caches in {"key_cache": (strided, cache), "value_cache": (cache, strided)}.items():
        with pytest.raises(ValueError, match=rf"^{name}: not contiguous"):
            write_kv(key, key, *caches, slots)
    with pytest.raises(ValueError, match=r"^cosine:"):
        rotate_and_write_kv(
            key, key, key, torch.ones(3, random.choice([3, 18])), torch.ones(3, 3), cache, cache, slots
        )
    angles = torch.ones(3, 16)
    for name in ("query", "key"):
        weights = {"query": torch.ones(16), "key": torch.ones(16)} | {name: torch.ones(8)}
        norm = HeadNorm(**weights, eps=1e-6)
        with pytest.raises(ValueError, match=rf"^norm\.{name}:"):
            rotate_and_write_kv(key, key, key, angles, angles, cache, cache, slots, norm=norm)
