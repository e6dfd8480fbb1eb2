"""Liger-Kernel's functions (``liger-kernel``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.foreign_kernels import Entry, attribute, drawn


def _entry(
    name: str,
    given: Callable[[], tuple[Any, ...]],
    *more: Any,
    reference: Callable[..., Any] | None = None,
    in_place: bool = False,
    **named: Any,
) -> Entry:
    """``liger_NAME(*given, *more)``; with ``in_place`` it gets copies, as it writes into what it is given."""

    def call(*given: Any) -> Any:
        function = attribute(f"liger_kernel.transformers.functional:liger_{name}")
        passed = [one.clone() if in_place and isinstance(one, torch.Tensor) else one for one in given]
        return function(*passed, *more, **named)

    return Entry("liger_kernel", name, given, call, reference)


def _scores(rows: int = 16, columns: int = 128) -> torch.Tensor:
    return drawn(rows, columns, gradient=False).log_softmax(-1)


def _rope() -> tuple[torch.Tensor, ...]:
    frequencies = 1 / 10000 ** (torch.arange(0, 64, 2, device="cuda").float() / 64)
    angles = torch.outer(torch.arange(32, device="cuda").float(), frequencies)
    both = torch.cat((angles, angles), -1)
    return drawn(1, 4, 32, 64), drawn(1, 2, 32, 64), both.cos()[None], both.sin()[None]


def _rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x * cos[:, None] + torch.cat((-x[..., 32:], x[..., :32]), -1) * sin[:, None]

    return turned(q), turned(k)


def _classes(rows: int, most: int) -> torch.Tensor:
    return torch.randint(0, most, (rows,), device="cuda")


ENTRIES = [
    _entry("rms_norm", lambda: (drawn(64, 256), drawn(256)), 1e-6, in_place=True,
           reference=lambda x, w: F.rms_norm(x, (256,), w, 1e-6)),
    _entry("layer_norm", lambda: (drawn(64, 256), drawn(256), drawn(256)), 1e-5,
           reference=lambda x, w, b: F.layer_norm(x, (256,), w, b, 1e-5)),
    _entry("group_norm", lambda: (drawn(4, 32, 64), drawn(32), drawn(32)), 32, 8, 1e-5,
           reference=lambda x, w, b: F.group_norm(x, 8, w, b, 1e-5)),
    _entry("swiglu", lambda: (drawn(32, 128), drawn(32, 128)), in_place=True, reference=lambda a, b: F.silu(a) * b),
    _entry("geglu", lambda: (drawn(32, 128), drawn(32, 128)), in_place=True,
           reference=lambda a, b: F.gelu(a, approximate="tanh") * b),
    _entry("rope", _rope, in_place=True, reference=_rotated),
    _entry("cross_entropy", lambda: (drawn(32, 512), _classes(32, 512)), in_place=True, reference=F.cross_entropy),
    _entry("fused_linear_cross_entropy", lambda: (drawn(32, 64), drawn(256, 64), _classes(32, 256)),
           reference=lambda x, w, classes: F.cross_entropy(x @ w.T, classes)),
    _entry("jsd", lambda: (_scores().requires_grad_(), _scores())),
    _entry("kl_div", lambda: (_scores().requires_grad_(), _scores().exp()),
           reference=lambda a, b: F.kl_div(a, b, reduction="mean")),
    _entry("tvd", lambda: (_scores().exp().requires_grad_(), _scores().exp()),
           reference=lambda a, b: 0.5 * (a - b).abs().mean()),
    _entry("softmax", lambda: (drawn(32, 256),), reference=lambda x: x.softmax(-1)),
    _entry("sparsemax", lambda: (drawn(16, 128),), -1),
    _entry("dyt", lambda: (drawn(32, 128), drawn(1), drawn(128), drawn(128)),
           reference=lambda x, a, w, b: torch.tanh(a * x) * w + b),
    _entry("poly_norm", lambda: (drawn(32, 128), drawn(3), drawn(1)), 1e-6, False),
    _entry("relu_squared", lambda: (drawn(32, 128),), reference=lambda x: F.relu(x) ** 2),
    _entry("fused_add_rms_norm", lambda: (drawn(32, 128), drawn(32, 128), drawn(128)), 1e-6, in_place=True,
           reference=lambda x, r, w: (F.rms_norm(x + r, (128,), w, 1e-6), x + r)),
    _entry("fused_linear_jsd", lambda: (drawn(16, 64), drawn(128, 64), drawn(16, 64, gradient=False),
                                        drawn(128, 64, gradient=False))),
    _entry("multi_token_attention", lambda: (drawn(1, 2, 32, 32), drawn(2, 2, 3, 3)), None, 1, 1, 1, 1, False),
    _entry("fused_neighborhood_attention", lambda: tuple(drawn(1, 2, 32, 32) for _ in range(3)), 7),
    _entry("attn_res", lambda: (drawn(4, 2, 16, 64), drawn(64), drawn(64))),
]  # fmt: skip
