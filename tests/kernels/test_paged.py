"""Attention to keys and values in pages: interpreted values, and what can be said without running a kernel."""

import pytest
import torch
from tilescope_kernels import paged_attention
from tilescope_kernels.attention import paged
from tilescope_kernels.attention.paged import SPEC, _spans

SCRIPTS = ["batch_paged.py"]
Q, CACHE = torch.ones(2, 4, 1, 16), torch.ones(5, 8, 2, 16)
TABLE, LENGTHS = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)


def test_interpreted(wrong):
    assert not wrong, wrong


def call(**change):
    given = {"query": Q, "key_cache": CACHE, "value_cache": CACHE, "page_table": TABLE, "lengths": LENGTHS}
    return paged_attention(**{**given, **change})


def test_a_tensor_on_no_gpu_is_named():
    with pytest.raises(ValueError, match="query is on cpu: Triton needs a CUDA device"):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value_cache": CACHE.half()}, "value_cache is torch.float16 but query is torch.float32"),
        ({"query": Q.clone().requires_grad_()}, "query requires a gradient and paged_attention has none"),
        (
            {"value_cache": CACHE.clone().requires_grad_()},
            "value_cache requires a gradient and paged_attention has none",
        ),
        ({"query": Q[0]}, "query has 3 dimensions"),
        ({"query": Q[0, 0, 0, 0]}, "query has 0 dimensions"),
        ({"query": torch.ones(2, 4, 1, 257)}, "query has 257 columns a head: give 1 to 256"),
        ({"key_cache": CACHE[0]}, r"key_cache has shape \(8, 2, 16\): give \(pages, keys of a page, heads, 16\)"),
        ({"query": Q[:, :3]}, r"key_cache has shape \(5, 8, 2, 16\): give .* divides query's 3"),
        ({"value_cache": CACHE[1:]}, r"value_cache has shape \(4, 8, 2, 16\) but key_cache has \(5, 8, 2, 16\)"),
        ({"page_table": TABLE.long()}, "page_table is torch.int64: give torch.int32"),
        ({"page_table": TABLE[:1]}, r"page_table has shape \(1, 3\): give \(2, pages of a sequence\)"),
        ({"lengths": LENGTHS[:1]}, r"lengths has shape \(1,\): give \(2,\)"),
        ({"lengths": LENGTHS.to("meta")}, "lengths is on meta but query is on cpu"),
        ({"scale": -1.0}, "scale is -1.0"),
    ],
)
def test_what_does_not_fit_is_named(caught, change, message):
    with pytest.raises(ValueError, match=message):
        call(**change)
    assert not caught


def test_a_gradient_that_nobody_asks_for_is_no_reason_to_refuse(caught):
    from tilescope.execution import launches

    with torch.no_grad(), launches.ThroughCustomOps():
        call(query=Q.clone().requires_grad_())
    assert caught == ["paged_attention_kernel", "attention_combine_kernel"]


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    q, k, v = torch.randn(2, 4, 2, 16), torch.randn(5, 8, 2, 16), torch.randn(5, 8, 2, 16)
    table = torch.tensor([[3, 1, -9], [4, -9, -9]], dtype=torch.int32)
    actual = call(query=q, key_cache=k, value_cache=v, page_table=table, lengths=LENGTHS.new_tensor([13, 0]), scale=0.5)
    k, v = (torch.cat((t[3], t[1, :5])).repeat_interleave(2, 1).transpose(0, 1) for t in (k, v))
    torch.testing.assert_close(actual[0], (q[0] @ k.mT * 0.5).softmax(-1) @ v)
    assert not actual[1].any()
    causal = call(query=q, key_cache=k.transpose(0, 1)[None], value_cache=v.transpose(0, 1)[None], page_table=0 * TABLE[:, :1],
                  lengths=LENGTHS.new_tensor([13, 1]), scale=0.5, is_causal=True)  # fmt: skip
    torch.testing.assert_close(causal[0, :, 1], actual[0, :, 1])
    assert not causal[1, :, 0].any()
    torch.testing.assert_close(causal[1, :, 1], v[:, 0])


def test_long_sequences_that_may_differ_have_spans_to_spare():
    assert _spans(32, 256, 8192, 64, 132) == 4 and _spans(64, 512, 4096, 64, 132) == 2
    # Not where they are short, nor where there are programs enough, nor where there is one sequence, which is cut for itself.
    assert _spans(32, 256, 1000, 64, 132) == _spans(1, 256, 8192, 64, 132) == 1
    assert _spans(1000, 8000, 8192, 64, 132) == _spans(1, 8000, 8192, 64, 132)
    assert 32 <= _spans(1, 8, 65536, 64, 132) <= 64 and _spans(2, 2, 10**6, 64, 132) == 64


def test_a_workloads_cache_is_its_sequences_pages():
    inputs = SPEC.inputs(SPEC.workload("ragged"), "cpu")
    counts = -(-inputs["lengths"] // 24)
    used = [page for row, count in zip(inputs["page_table"].tolist(), counts, strict=True) for page in row[:count]]
    assert sorted(used) == list(range(len(inputs["key_cache"])))


def test_queries_whose_heads_lie_far_apart_are_copied(monkeypatch):
    given = []
    monkeypatch.setattr(paged, "launch", lambda _, grid, *args, **__: given.append(args))
    cache, table = torch.empty(9, 16, 8, 128, device="meta"), torch.empty(1, 4, dtype=torch.int32, device="meta")
    # The last queries of 32 heads of a million: the 16th head is 2^31 elements from the first, or not quite.
    for rows, is_copied in ((2**20, True), (2**19 - 1, False)):
        q = torch.empty(1, 32, rows, 128, device="meta")[:, :, -4:]
        paged._paged._launch.function(q, cache, cache, table, table[0, :1], True, 1.0, "")
        assert given[-2][2].is_contiguous() == is_copied
