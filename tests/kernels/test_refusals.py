"""What functions refuse, in one line that names the argument and what to give instead; nothing is launched."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope_kernels import CATALOG, FAMILIES
from tilescope_kernels._shared.one_byte import check_has_fp8
from tilescope_kernels.studies import tma_copy

SPECS = {spec.name: spec for spec in CATALOG}
#: A config that loads through descriptors, which small rows do not allow.
TMA = {name: SPECS[name].implementations["triton"].configs[0] for name in ("attention", "conv2d", "fp8_matmul")}
INT32 = torch.int32


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


Q, K, ROW, MATRIX = ones(2, 4, 5, 16), ones(2, 2, 7, 16), ones(6), ones(4, 256)
PACKED, CACHE, ENDS = ones(9, 4, 16), ones(5, 8, 2, 16), torch.tensor([0, 4, 9], dtype=INT32)
CODES, SCALES, NF4 = ones(4, 256, dtype=torch.int8), ones(4, 1), torch.zeros(32, dtype=torch.uint8)
EIGHT, ONE = ones(4, 16).to(torch.float8_e4m3fn), ones()
#: Functions with arguments that fit.
FITTING = {
    "attention": (kernels.scaled_dot_product_attention, {"query": Q, "key": K, "value": K, "enable_gqa": True}),
    "ragged": (
        kernels.ragged_attention,
        {"query": PACKED, "key": PACKED[:, :2], "value": PACKED[:, :2], "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS,
         "max_seqlen_q": 5, "max_seqlen_k": 5},
    ),
    "paged": (
        kernels.paged_attention,
        {"query": Q[:, :, :1], "key_cache": CACHE, "value_cache": CACHE, "page_table": ENDS[:2, None], "lengths": ENDS[:2]},
    ),
    "conv2d": (kernels.conv2d, {"input": ones(2, 4, 6, 5), "weight": ones(3, 4, 3, 3)}),
    "grouped": (kernels.conv2d, {"input": ones(2, 12, 6, 5), "weight": ones(12, 1, 3, 3), "groups": 12}),
    "layer_norm_linear": (
        kernels.layer_norm_linear,
        {"x": ones(3, 8), "norm_weight": ones(8), "norm_bias": None, "weight": ones(5, 8)},
    ),
    "rms_norm_gelu_linear": (kernels.rms_norm_gelu_linear, {"x": ones(3, 8), "norm_weight": ones(8), "weight": ones(5, 8)}),
    "quantize": (kernels.quantize, {"x": MATRIX}),
    "dequantize": (kernels.dequantize, {"q": CODES, "scale": SCALES}),
    "nf4": (kernels.nf4_dequantize, {"codes": NF4, "absmax": SCALES[:1], "shape": (8, 8)}),
    "fp8": (kernels.fp8_matmul, {"a": EIGHT, "b": EIGHT.T, "scale_a": ONE, "scale_b": ONE}),
    "int8": (kernels.int8_matmul, {"a": CODES, "b": CODES.T}),
    "w8a16": (kernels.w8a16_matmul, {"x": MATRIX, "weight": CODES, "scale": SCALES}),
    "lora": (kernels.lora_linear, {"x": MATRIX, "weight": MATRIX, "lora_a": MATRIX, "lora_b": MATRIX[:, :4]}),
    "tma_copy": (tma_copy.copy_through_descriptors, {"x": ones(4, 8)}),
    "block_reduction": (
        {spec.name: spec for spec in FAMILIES["studies"]}["block_reduction"].implementations["warps"].call, {"x": MATRIX},
    ),
}  # fmt: skip
REFUSED = [
    ("attention", {"value": K.half()}, "value is torch.float16 but query is torch.float32"),
    ("attention", {"dropout_p": 0.1}, "dropout_p is 0.1"),
    ("attention", {"query": ones(2, 4, 5, 257)}, "query has 257 columns a head: give 1 to 256"),
    ("attention", {"enable_gqa": False}, "key has 2 heads but query has 4: give as many, or enable_gqa=True"),
    ("attention", {"query": Q[:, :3]}, "key has 2 heads: with enable_gqa give a divisor of query's 3"),
    ("attention", {"attn_mask": ones(5, 6)}, r"attn_mask has shape \(5, 6\): give one that broadcasts to \(2, 4, 5, 7\)"),
    ("attention", {"attn_mask": ones(5, 7), "is_causal": True}, "attn_mask is given beside is_causal"),
    ("attention", {"attn_mask": ones(5, 7).requires_grad_()}, "attn_mask requires a gradient"),
    ("attention", {"window": 0, "is_causal": True}, "window is 0 and is_causal is True: give at least 1"),
    ("attention", {"scale": -1.0}, "scale is -1.0"),
    ("attention", {"config": TMA["attention"]}, "config has TMA=1"),
    ("ragged", {"query": PACKED[0]}, "query has 2 dimensions"),
    ("ragged", {"key": PACKED[:, :2, 1:]}, r"key has shape \(9, 2, 15\): give 16 columns, and a number of heads that divides query's 4"),
    ("ragged", {"cu_seqlens_q": ENDS.long()}, "cu_seqlens_q is torch.int64: give torch.int32"),
    ("ragged", {"cu_seqlens_k": ENDS[:2]}, r"cu_seqlens_k has shape \(2,\): give both as many numbers, one more than sequences"),
    ("ragged", {"max_seqlen_q": -1}, "max_seqlen_q is -1: give the rows of the longest sequence"),
    ("paged", {"query": Q[:, :, :1].clone().requires_grad_()}, "query requires a gradient and paged_attention has none"),
    ("paged", {"query": Q[:, :3, :1]}, r"key_cache has shape \(5, 8, 2, 16\): give .* divides query's 3"),
    ("paged", {"page_table": ENDS[:2, None].long()}, "page_table is torch.int64: give torch.int32"),
    ("paged", {"lengths": ENDS[:1]}, r"lengths has shape \(1,\): give \(2,\)"),
    ("conv2d", {"weight": ones(4, 3, 3)}, "weight has 3 dimensions"),
    ("conv2d", {"weight": ones(3, 4, 7, 3)}, r"weight has shape \(3, 4, 7, 3\): too large for images of \(6, 5\)"),
    ("conv2d", {"bias": ones(4)}, r"bias has shape \(4,\): give one number a filter, \(3,\)"),
    ("conv2d", {"stride": 0}, "stride is 0"),
    ("conv2d", {"padding": "same"}, "padding is 'same'"),
    ("conv2d", {"config": TMA["conv2d"]}, "config has TMA=1"),
    ("grouped", {"groups": 5}, "groups is 5: it must divide the 12 channels of input"),
    ("grouped", {"weight": ones(9, 1, 3, 3)}, "groups is 12: it must divide the 9 filters of weight"),
    ("grouped", {"groups": 4}, "weight has 1 channels but input has 12 in 4 groups, 3 each: they must be equal"),
    ("grouped", {"groups": 0}, "groups is 0: give a whole number of at least 1"),
    *(
        (name, change, message)
        for name in ("layer_norm_linear", "rms_norm_gelu_linear")
        for change, message in (
            ({"x": ones()}, "x has no dimension"),
            ({"x": ones(3, 7)}, r"weight has shape \(5, 8\): give \(columns out, 7\)"),
            ({"norm_weight": ones(5)}, r"norm_weight has shape \(5,\): give one number a column of x, \(8,\)"),
            ({"bias": ones(8)}, r"bias has shape \(8,\): give one number a row of weight, \(5,\)"),
        )
    ),
    ("quantize", {"dtype": INT32}, "dtype is torch.int32: give torch.int8 or torch.float8_e4m3fn"),
    ("quantize", {"granularity": "rows"}, "granularity is 'rows': give one of tensor, row, block"),
    ("quantize", {"x": MATRIX.clone().requires_grad_()}, "x requires a gradient and quantize has none"),
    ("dequantize", {"q": MATRIX}, "q is torch.float32: give torch.int8 or torch.float8_e4m3fn"),
    ("dequantize", {"scale": SCALES[:3]}, r"scale has shape \(3, 1\) beside q's \(4, 256\): give \(\)"),
    ("nf4", {"shape": (9, 8)}, r"codes has 32 elements: shape \(9, 8\) wants 36"),
    ("fp8", {"a": MATRIX}, "a is torch.float32: give torch.float8_e4m3fn"),
    ("fp8", {"scale_b": ONE.half()}, "scale_b is torch.float16: give torch.float32"),
    ("fp8", {"scale_b": SCALES}, r"shapes \(\) and \(4, 1\): give \(\) and \(\), \(4, 1\) and"),
    ("fp8", {"a": EIGHT[:, :15], "b": EIGHT[:, 1:].T, "config": TMA["fp8_matmul"]}, "config has TMA=1"),
    ("int8", {"scale_a": SCALES}, "scale_b is None and the other scale is not"),
    ("w8a16", {"scale": SCALES[:, 0]}, r"scale has shape \(4,\): give \(4, 1\)"),
    ("lora", {"lora_a": ones(200, 256)}, "the rank from 1 to 128"),
    ("lora", {"weight": MATRIX.half()}, "weight is torch.float16 but x is torch.float32"),
    ("tma_copy", {"x": ones(4, 6)}, "x has 6 columns of torch.float32: give rows of a multiple"),
    ("tma_copy", {"x": ones(4, 8).requires_grad_()}, "x requires a gradient"),
    ("block_reduction", {"x": ROW}, "x has 1 dimensions: give a matrix"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), REFUSED, ids=[f"{name}-{m[:30]}" for name, _, m in REFUSED])
def test_function_names_what_does_not_fit(caught, name, change, message):
    call, given = FITTING[name]
    with pytest.raises(ValueError, match=message) as error:
        call(**{**given, **change})
    assert "\n" not in str(error.value) and not caught


def test_paged_attention_without_grad_takes_a_leaf(caught):
    from tilescope.execution import launches

    call, given = FITTING["paged"]
    with torch.no_grad(), launches.ThroughCustomOps():
        call(**{**given, "query": given["query"].clone().requires_grad_()})
    assert caught == ["paged_attention_kernel", "attention_combine_kernel"]


def test_ragged_attention_waits_for_no_values(caught):
    from tilescope.execution import launches

    call, given = FITTING["ragged"]
    with launches.ThroughCustomOps():
        call(**{key: value.to("meta") if torch.is_tensor(value) else value for key, value in given.items()})
    assert caught == ["ragged_attention_kernel"]


def test_fp8_asks_for_a_gpu_that_has_it(cuda):
    class OnGpu:
        is_cuda, device = True, "cuda:0"

    capability = [8, 6]
    cuda({"get_device_capability": lambda device: tuple(capability)})
    with pytest.raises(ValueError, match=r"x is on an sm_86: FP8 .* needs sm_89 or later"):
        check_has_fp8(OnGpu(), "x")
    capability[:] = 9, 0
    check_has_fp8(OnGpu(), "x")
