"""Terms, bounds, sums and shares of attention's backward pass on Hopper; kernels interpreted."""

import torch
from tilescope_kernels.attention import hopper_gradients

SCRIPTS = ["batch_attention_sums.py"]


def test_interpreted(wrong):
    assert not wrong, wrong


def _shares(causal, *extents):
    batch, kv_heads, group, queries, keys, columns = extents
    q = torch.empty(batch, kv_heads * group, queries, columns, device="meta", dtype=torch.bfloat16)
    k = torch.empty(batch, kv_heads, keys, columns, device="meta", dtype=torch.bfloat16)
    return hopper_gradients.shares(q, k, causal)


def test_tiles_of_keys_are_shared_where_they_are_few_or_of_unequal_work(monkeypatch):
    monkeypatch.setattr(hopper_gradients, "multiprocessors", lambda _: 132)
    # 32 tiles for 132 multiprocessors; 96, of which the first have much more to do than the last.
    assert _shares(False, 1, 2, 8, 2048, 2048, 128) == 4
    assert _shares(True, 1, 8, 4, 1000, 1500, 80) == 3
    # Enough tiles; a whole wave of them; shares would be too short.
    assert _shares(True, 8, 16, 1, 2048, 2048, 64) == _shares(False, 1, 16, 1, 1024, 1024, 64) == 1
    assert _shares(False, 1, 1, 1, 200, 2048, 128) == 1


def test_shares_have_a_limit(monkeypatch):
    monkeypatch.setattr(hopper_gradients, "multiprocessors", lambda _: 132)
    for keys in (1, 127, 128, 129, 4096):
        for queries in (1, 128, 4097):
            for causal in (False, True):
                shares = _shares(causal, 1, 1, 8, queries, keys, 128)
                assert 1 <= shares <= max(1, 8 * queries // 64 // 4 + 2)
