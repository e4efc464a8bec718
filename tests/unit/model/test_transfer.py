"""Many small arrays travel to a device as one buffer."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.worker.model.run.transfer import pack, unpack, upload

any_array = st.sampled_from([np.int32, np.int64, np.float32]).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5),
        elements={"allow_nan": False} if dtype is np.float32 else None,
    )
)


@settings(deadline=None)
@given(st.lists(any_array, max_size=6))
def test_what_is_packed_is_unpacked(originals: list[np.ndarray]) -> None:
    unpacked = unpack(pack(originals, pin_memory=False), originals)
    for original, tensor in zip(originals, unpacked, strict=True):
        assert tensor.numpy().dtype == original.dtype
        np.testing.assert_array_equal(tensor.numpy(), original)


def test_slices_that_are_not_contiguous_arrive_whole() -> None:
    table = np.arange(24, dtype=np.int32).reshape(4, 6)[1:3, :4]
    (unpacked,) = unpack(pack([table], pin_memory=False), [table])
    (uploaded,) = upload([table], torch.device("cpu"))
    assert unpacked.tolist() == uploaded.tolist() == [[6, 7, 8, 9], [12, 13, 14, 15]]
