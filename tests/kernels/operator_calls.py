"""Operators' arguments, small and ragged, for ``torch.library.opcheck`` on any device."""

import torch
from tilescope_kernels import CATALOG

assert CATALOG  # Asked for, every kernel is imported, which registers its operators.


def operator_calls(device):
    """Arguments by the operator's name in ``torch.ops.tilescope``; those that have a gradient require one."""

    def draw(*shape, seed=0):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)

    x, y, w, head = draw(7, 129), draw(7, 129, seed=1), draw(129, seed=2), draw(17, 129, seed=3)
    q, k = draw(2, 3, 5, 64), draw(2, 1, 5, 64, seed=1)
    angles = draw(1, 5, 32, seed=5).repeat(1, 1, 2)
    tables = angles.cos(), angles.sin()
    target = torch.arange(7, device=device).masked_fill(torch.arange(7, device=device) % 4 == 1, -100)
    row = y[:, 0].contiguous()
    leaf, other, weight, rows = (tensor.clone().requires_grad_() for tensor in (x, y, w, head))
    heads = [draw(1, h, 5, 16, seed=h).requires_grad_() for h in (4, 2, 2)]
    plain = [tensor.detach() for tensor in heads]
    o, lse = (draw(*shape, seed=6) for shape in ((1, 4, 5, 16), (1, 4, 5)))
    packed = [tensor.detach()[0].transpose(0, 1).clone().requires_grad_() for tensor in heads]
    ends = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)
    pages, steps = draw(9, 8, 1, 16), ([1, 2], [1, 1], [1, 1])
    codes, scale = (16 * x).to(torch.int8), draw(7, 1).abs()
    return {
        "vector_add": (x, y, ""),
        "add_relu_mul": (x, y, 1.5, ""),
        "matmul": (leaf, rows.detach().T.clone().requires_grad_(), ""),
        "gelu": (leaf, 1, ""),
        "gelu_backward": (x, y, 2, ""),
        "dropout": (leaf, torch.full((1,), 5, device=device), 0.3, ""),
        "gated": (leaf, other, 0, ""),
        "gated_backward": (x, x, y, 2, ""),
        "rope": (q.clone().requires_grad_(), k.clone().requires_grad_(), *tables, False, ""),
        "rope_": (q, k, *tables, True, ""),
        "row_sum": (x, ""),
        "online_max": (x, ""),
        "histogram": (target.int(), 9, False, ""),
        "softmax": (leaf, ""),
        "layer_norm": (leaf, weight, weight, 1e-5, True, ""),
        "rms_norm": (leaf, weight, 1e-6, True, ""),
        "rms_norm_backward": (x, None, y, w, row, True, ""),
        "group_norm": (
            draw(2, 6, 9).requires_grad_(),
            3,
            draw(6).requires_grad_(),
            draw(6).requires_grad_(),
            1e-5,
            True,
            "",
        ),
        "add_rms_norm": (leaf, other, weight, 1e-6, True, ""),
        "cross_entropy": (leaf, target, -100, 0.1, 1, torch.float32, True, ""),
        "cross_entropy_with_gradient": (leaf, target, -100, 0.1, 1, torch.float32, ""),
        "scale_rows_": (x.clone(), row),
        "linear_cross_entropy": (leaf, rows, None, target, -100, 0.0, 1, torch.float32, True, True, False, ""),
        "attention": (*heads, True, 0.25, True, "", None, 3),
        "attention_backward": (torch.ones_like(o), *plain, o, lse, False, 0.25, ""),
        "ragged_attention": (*packed, ends, ends, 5, 5, True, 0.25, True, ""),
        "ragged_attention_backward": (
            draw(5, 4, 16), *(t.detach() for t in packed), draw(5, 4, 16), draw(4, 5), ends, ends, 5, 5, True, 0.25, "",
        ),
        "paged_attention": (q[:, :, :1, :16], pages, pages, ends[:2, None], ends[1:], False, 0.25, ""),
        "conv2d": (*(draw(*s).requires_grad_() for s in ((2, 5, 6, 4), (7, 3, 3, 4), (7,))), *steps, True, ""),
        "depthwise_conv2d": (draw(2, 4, 7, 6).requires_grad_(), draw(8, 1, 3, 3), None, *steps, True, ""),
        "grouped_conv2d": (draw(2, 5, 6, 4).requires_grad_(), draw(8, 3, 3, 2), None, *steps, 2, True, ""),
        "layer_norm_linear": (leaf, weight, weight, rows, None, 1e-5, ""),
        "rms_norm_gelu_linear": (leaf, weight, rows, None, 1e-5, ""),
        "rms_norm_gelu": (x, w, 1e-5),
        "rms_norm_gelu_backward": (y, x, w, 1e-5, True),
        "lora_linear": (leaf, rows, x[:3].clone().requires_grad_(), draw(17, 3).requires_grad_(), 0.5, ""),
        "quantize": (x, torch.int8, "row", ""),
        "dequantize": (codes, scale, torch.float16, 1, ""),
        "int8_matmul": (codes, codes, None, None, torch.int32, ""),
        "w8a16_matmul": (x, codes, scale, ""),
        "nf4_dequantize": (codes.view(torch.uint8)[:1, :32], scale[:1], [8, 8], torch.float16, ""),
    }  # fmt: skip
