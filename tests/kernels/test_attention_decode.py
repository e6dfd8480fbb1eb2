"""Attention of few queries over many keys: interpreted values, and how keys are shared out."""

import pytest
from tilescope_kernels.attention.decode import _span, decode_serves

SCRIPTS = ["batch_attention_decode.py"]


def test_interpreted(wrong):
    assert not wrong, wrong


@pytest.mark.parametrize("units", [1, 8, 64, 100, 128, 131, 264, 300, 1000])
@pytest.mark.parametrize("keys", [512, 513, 8192, 100_000])
def test_spans_are_whole_blocks_that_fill_the_multiprocessors(units, keys):
    span = _span(units, keys, 64, 264)
    splits = -(-keys // span)
    assert span % 64 == 0 and 1 <= splits <= 64 and (splits - 1) * span < keys
    # Either keys run out, or the last wave of programs leaves at most two fifths of the multiprocessors' time unused.
    waves = -(-units * splits // 264)
    assert span <= 128 or splits >= 63 or units * splits / (waves * 264) >= 0.6


def test_a_causal_mask_leaves_few_keys_and_a_gradient_needs_more_than_parts():
    assert decode_serves(1, 8192, causal=False, save=False)
    assert not decode_serves(1, 8192, causal=True, save=False)
    assert not decode_serves(1, 8192, causal=False, save=True)
    assert not decode_serves(17, 8192, causal=False, save=False)
