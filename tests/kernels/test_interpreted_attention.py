"""Attention and the studies on the CPU: values, gradients, shapes, strides, special values."""

SCRIPTS = [
    "batch_attention.py",
    "batch_attention_decode.py",
    "batch_attention_sums.py",
    "batch_ragged.py",
    "batch_paged.py",
    "batch_studies.py",
]


def test_interpreted(wrong):
    assert not wrong, wrong
