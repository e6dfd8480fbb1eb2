"""Attention of packed sequences: interpreted values and gradients, and what can be said without running a kernel."""

import pytest
import torch
from tilescope_kernels import ragged_attention
from tilescope_kernels.attention.ragged import SPEC
from tilescope_kernels.spec import FORWARD, Workload

SCRIPTS = ["batch_ragged.py"]
Q, K = torch.ones(9, 4, 16), torch.ones(7, 2, 16)
ENDS_Q, ENDS_K = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 7, 7], dtype=torch.int32)


def test_interpreted(wrong):
    assert not wrong, wrong


def call(**change):
    given = {"query": Q, "key": K, "value": K, "cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K}
    return ragged_attention(**{**given, "max_seqlen_q": 5, "max_seqlen_k": 7, **change})


def test_a_tensor_on_no_gpu_is_named():
    with pytest.raises(ValueError, match="query is on cpu: Triton needs a CUDA device"):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": K.half()}, "value is torch.float16 but query is torch.float32"),
        ({"query": Q[0]}, "query has 2 dimensions"),
        ({"query": Q[0, 0, 0]}, "query has 0 dimensions"),
        ({"query": torch.ones(9, 4, 257)}, "query has 257 columns a head: give 1 to 256"),
        ({"key": K[..., 1:]}, r"key has shape \(7, 2, 15\): give 16 columns, and a number of heads that divides query's 4"),
        ({"query": Q[:, :3]}, r"key has shape \(7, 2, 16\): give .* divides query's 3"),
        ({"value": K[1:]}, r"value has shape \(6, 2, 16\) but key has \(7, 2, 16\)"),
        ({"cu_seqlens_q": ENDS_Q.long()}, "cu_seqlens_q is torch.int64: give torch.int32"),
        ({"cu_seqlens_k": ENDS_K[:2]}, r"cu_seqlens_k has shape \(2,\): give both as many numbers, one more than sequences"),
        ({"cu_seqlens_q": ENDS_Q[None]}, r"cu_seqlens_q has shape \(1, 3\)"),
        ({"cu_seqlens_k": ENDS_K.to("meta")}, "cu_seqlens_k is on meta but query is on cpu"),
        ({"max_seqlen_q": -1}, "max_seqlen_q is -1: give the rows of the longest sequence"),
        ({"max_seqlen_k": torch.tensor(7)}, r"max_seqlen_k is tensor\(7\)"),
        ({"scale": -1.0}, "scale is -1.0"),
        ({"scale": float("nan")}, "scale is nan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(caught, change, message):
    with pytest.raises(ValueError, match=message):
        call(**change)
    assert not caught


def test_the_grid_is_the_longest_sequences_and_nothing_waits_for_values(caught):
    # Meta tensors have no values that a launcher could have asked for.
    given = {"query": Q, "key": K, "value": K, "cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K}
    from tilescope.execution import launches

    with launches.ThroughCustomOps():
        call(**{name: tensor.to("meta") for name, tensor in given.items()})
    assert caught == ["ragged_attention_kernel"]


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    q, k, v = torch.randn(9, 4, 16), torch.randn(7, 2, 16), torch.randn(7, 2, 16)
    actual = call(query=q, key=k, value=v, scale=0.5)
    k, v = (t.repeat_interleave(2, 1).transpose(0, 1) for t in (k, v))
    torch.testing.assert_close(actual[:4].transpose(0, 1), (q[:4].transpose(0, 1) @ k.mT * 0.5).softmax(-1) @ v)
    assert not actual[4:].any()  # which have no keys
    # The last query sees the last key: one query to several keys all of them, two queries all and all but one.
    scores = q[:2].transpose(0, 1) @ k.mT * 0.5
    scores[:, 0, -1] = -torch.inf
    ends = {"cu_seqlens_q": ENDS_Q.new_tensor([0, 2]), "cu_seqlens_k": ENDS_K[:2]}
    causal = call(query=q[:2], key=k.transpose(0, 1), value=v.transpose(0, 1), scale=0.5, is_causal=True, **ends)
    torch.testing.assert_close(causal.transpose(0, 1), scores.softmax(-1) @ v)


def test_workloads_are_of_random_lengths_up_to_the_longest_and_cost_what_those_do():
    one = Workload(dict(zip(SPEC.dims, (50, 1, 2, 100, 16), strict=True)), "bf16")
    ends = SPEC.inputs(one, "cpu")["cu_seqlens_q"].diff().tolist()
    assert len(ends) == 50 and 1 <= min(ends) < 10 and 90 < max(ends) <= 100
    assert SPEC.cost(one, FORWARD).flops == 4 * 2 * 16 * sum(n * (n + 1) // 2 for n in ends)
    assert SPEC.cost(one, FORWARD).pipe == "bf16"
