"""Attention: interpreted values and gradients, and what can be said without running a kernel."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope_kernels import CATALOG
from tilescope_kernels.attention import attention, attention_configs
from tilescope_kernels.spec import BACKWARD, FORWARD, Workload

SCRIPTS = ["batch_attention.py"]
SPECS = {spec.name: spec for spec in CATALOG}
Q, K = torch.ones(2, 4, 5, 16), torch.ones(2, 2, 7, 16)


def test_interpreted(wrong):
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "query is on cpu: Triton needs a CUDA device"),
        ({"value": K.half()}, "value is torch.float16 but query is torch.float32"),
        ({"dropout_p": 0.1}, "dropout_p is 0.1"),
    ],
)
def test_what_cannot_be_served_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        kernels.scaled_dot_product_attention(**{"query": Q, "key": K, "value": K, "enable_gqa": True, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": Q[0]}, "query has 3 dimensions"),
        ({"query": torch.ones(2, 4, 5, 257)}, "query has 257 columns a head: give 1 to 256"),
        ({"key": K[:1]}, r"key has shape \(1, 2, 7, 16\): give \(2, heads, rows, 16\)"),
        ({"value": K[:, :, 1:]}, r"value has shape \(2, 2, 6, 16\) but key has \(2, 2, 7, 16\)"),
        ({"enable_gqa": False}, "key has 2 heads but query has 4: give as many, or enable_gqa=True"),
        ({"query": Q[:, :3]}, "key has 2 heads: with enable_gqa give a divisor of query's 3"),
        ({"attn_mask": torch.ones(5, 6)}, r"attn_mask has shape \(5, 6\): give one that broadcasts to \(2, 4, 5, 7\)"),
        ({"attn_mask": torch.ones(5, 7, dtype=torch.int32)}, "attn_mask is torch.int32: give torch.bool, or"),
        ({"attn_mask": torch.ones(5, 7), "is_causal": True}, "attn_mask is given beside is_causal"),
        ({"attn_mask": torch.ones(5, 7, requires_grad=True)}, "attn_mask requires a gradient"),
        ({"attn_mask": torch.ones(5, 7, device="meta")}, "attn_mask is on meta"),
        ({"window": 0, "is_causal": True}, "window is 0 and is_causal is True: give at least 1"),
        ({"window": 5}, "window is 5 and is_causal is False: .*with is_causal=True"),
        ({"scale": -1.0}, "scale is -1.0"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"config": SPECS["attention"].implementations["triton"].configs[0]}, "config has TMA=1"),
    ],
)
def test_shapes_and_options_that_do_not_fit_are_named(caught, change, message):
    with pytest.raises(ValueError, match=message):
        kernels.scaled_dot_product_attention(**{"query": Q, "key": K, "value": K, "enable_gqa": True, **change})
    assert not caught


def test_hopper_s_kernels_are_chosen_by_how_many_tiles_there_are(monkeypatch):
    monkeypatch.setattr(attention_configs, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(attention_configs, "shared_memory", lambda _: 227 * 1024)

    def chosen(causal, *shape):
        config = attention_configs.chosen_config(torch.empty(shape, device="meta").half(), causal, "", False, True)
        return config["BLOCK_M"] if config["SPECIALIZED"] else 0

    # Queries of a program: 64 that two warpgroups share, 128, 192 of three warpgroups; 0 is a Triton kernel.
    assert chosen(True, 1, 16, 1024, 64) == chosen(True, 4, 16, 2048, 64) == 64
    assert chosen(True, 8, 16, 2048, 64) == chosen(True, 1, 32, 16384, 64) == 192
    assert chosen(False, 1, 16, 1024, 64) == chosen(False, 1, 8, 1024, 40) == 64
    assert chosen(False, 1, 32, 1024, 64) == chosen(False, 1, 2, 128, 64) == chosen(True, 1, 2, 128, 64) == 0
    assert chosen(False, 2, 16, 2048, 128) == chosen(True, 2, 16, 2048, 128) == 128
    assert chosen(True, 1, 16, 1024, 32) == 0
    # More than 64 columns: few tiles of many queries under a causal mask.
    assert chosen(True, 1, 16, 512, 128) == chosen(True, 2, 8, 512, 96) == 64
    assert chosen(False, 1, 16, 512, 128) == chosen(True, 1, 4, 512, 128) == chosen(True, 1, 32, 256, 128) == 0
    assert chosen(True, 1, 16, 700, 128) == 128 and chosen(True, 1, 8, 512, 256) == 0


def test_a_scale_of_0_is_left_to_triton_s_kernel(monkeypatch):
    monkeypatch.setattr(attention, "capability", lambda _: 90)
    monkeypatch.setattr(attention_configs, "shared_memory", lambda _: 227 * 1024)
    chosen = []
    for name in ("attend", "attend_few", "launch"):
        monkeypatch.setattr(attention, name, lambda *_, name=name, **__: chosen.append(name))
    q = torch.empty(2, 16, 2048, 128, device="meta", dtype=torch.bfloat16)
    for scale in (1.0, 0.0, 1e-40):
        attention._attention._launch.function(q, q, q, True, scale, False, "")
    assert chosen == ["attend", "launch", "launch"]


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    q = torch.randn(1, 2, 5, 7)
    bias = torch.randn(5, 5)
    actual = kernels.scaled_dot_product_attention(q, q, q, bias)
    torch.testing.assert_close(actual, (q @ q.mT / 7**0.5 + bias).softmax(-1) @ q)
    actual = kernels.scaled_dot_product_attention(q, q, q, is_causal=True, window=2)
    hidden = ~torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    torch.testing.assert_close(actual, (q @ q.mT / 7**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ q)


@pytest.mark.parametrize("name", ["attention", "causal_attention"])
def test_reference_is_pytorchs_function(name):
    inputs = SPECS[name].inputs(Workload(dict(zip(SPECS[name].dims, (2, 3, 2, 9, 11, 8), strict=True)), "fp32"), "cpu")
    actual = SPECS[name].reference(**inputs)
    torch.testing.assert_close(actual, torch.nn.functional.scaled_dot_product_attention(**inputs))


def test_cost_counts_visible_pairs_and_every_tensor_once():
    full, causal = SPECS["attention"], SPECS["causal_attention"]
    large = full.workload("large")
    assert full.cost(large, FORWARD).flops == 4 * 4 * 32 * 4096 * 4096 * 128
    assert full.cost(large, FORWARD).pipe == "bf16"
    assert full.cost(large, BACKWARD).flops == 10 * 4 * 32 * 4096 * 4096 * 128
    assert causal.cost(large, FORWARD).flops == 4 * 4 * 32 * (4096 * 4097 // 2) * 128
    odd = Workload(dict(zip(full.dims, (1, 1, 2, 3, 5, 16), strict=True)), "fp16")
    q_size, kv_size = 2 * 3 * 16 * 2, 5 * 16 * 2
    assert full.cost(odd, FORWARD).bytes_read == q_size + 2 * kv_size
    assert full.cost(odd, BACKWARD).bytes_read == 3 * q_size + 2 * kv_size
    assert full.cost(odd, BACKWARD).bytes_written == q_size + 2 * kv_size
    assert causal.cost(odd, FORWARD).flops == 4 * 2 * (1 + 2 + 3) * 16
    wide = Workload(dict(zip(full.dims, (1, 1, 1, 5, 3, 16), strict=True)), "fp16")
    assert causal.cost(wide, FORWARD).flops == 4 * (1 + 2 + 3 + 3 + 3) * 16
