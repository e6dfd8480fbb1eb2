"""Compiling as sizes change, and from many threads: a new size rarely compiles a new kernel.

A program that trains or serves meets many sizes.
"""

import pytest

#: Most kernels compiled while a call walks over sizes.
LIMITS = {
    "softmax": 12,
    "matmul squares": 11,
    "matmul rows": 4,
    "attention": 10,
    "decode": 3,
    "cross-entropy": 10,
    "conv2d": 6,
    "rms_norm": 3,
}


@pytest.mark.parametrize("walk", LIMITS)
def test_sizes_share_compiled_kernels(batch, walk):
    assert 0 < batch("batch_assumed.py")["walks"][walk] <= LIMITS[walk]


def test_kernels_of_a_step_compile_together(batch):
    assert batch("batch_assumed.py")["alone"] == []


def test_functions_called_first_by_threads(batch):
    raised = batch("batch_assumed.py")["threads"]
    assert len(raised) > 40
    assert not {name: wrong for name, wrong in raised.items() if wrong}


def test_warm_compiles_what_a_model_launches(batch):
    found = batch("batch_warm.py")
    assert found["compiled"] == [3, len(set(found["launched"])) - 3, 0]
