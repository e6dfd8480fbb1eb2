"""Operators' arguments, small and ragged, for ``torch.library.opcheck`` on any device."""

from typing import Any

import torch
from tilescope_kernels import CATALOG

assert CATALOG  # Asked for, every kernel is imported, which registers its operators.


def operator_calls(device: str) -> dict[str, tuple[Any, ...]]:
    """Arguments by the operator's name in ``torch.ops.tilescope``; those that have a gradient require one."""

    def draw(*shape: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)

    x, y, w, head = draw(7, 129), draw(7, 129, seed=1), draw(129, seed=2), draw(17, 129, seed=3)
    q, k = draw(2, 3, 5, 64), draw(2, 1, 5, 64, seed=1)
    angles = draw(1, 5, 32, seed=5).repeat(1, 1, 2)
    tables = angles.cos(), angles.sin()
    target = torch.arange(7, device=device).masked_fill(torch.arange(7, device=device) % 4 == 1, -100)
    row = y[:, 0].contiguous()
    leaf, other, weight, rows = (tensor.clone().requires_grad_() for tensor in (x, y, w, head))
    return {
        "vector_add": (x, y, ""),
        "add_relu_mul": (x, y, 1.5, ""),
        "matmul": (leaf, rows.detach().T.clone().requires_grad_(), ""),
        "lora_linear_backward": (*(t.half() for t in (draw(7, 17), head, x[:3], draw(17, 3))), 0.5),
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
        "rms_norm_backward": (x, y, w, row, True, ""),
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
    }
