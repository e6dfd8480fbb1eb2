"""Mamba's kernels in Triton (``mamba-ssm``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.foreign_kernels import Entry, drawn, late

_STEPS, _CHUNK = 128, 32


def _function(path: str) -> Callable[..., Any]:
    return late(f"mamba_ssm.ops.triton.{path}")


def _update() -> tuple[torch.Tensor, ...]:
    shapes = ((2, 64, 16), (2, 64), (2, 64), (64, 16), (2, 16), (2, 16), (64,), (64,))
    state, x, dt, decay, b, c, skip, bias = (drawn(*shape, gradient=False) for shape in shapes)
    return state, x, dt, -decay.exp(), b, c, skip, bias


def _updated(path: str) -> Any:
    def call(*given: torch.Tensor) -> Any:
        state, *rest, bias = given
        function = _function(f"selective_state_update:{path}")
        return function(state.clone(), *rest, dt_bias=bias, dt_softplus=True)

    return call


def _scan() -> tuple[torch.Tensor, ...]:
    x, b, c = drawn(1, _STEPS, 2, 32), drawn(1, _STEPS, 1, 32), drawn(1, _STEPS, 1, 32)
    return x, F.softplus(drawn(1, _STEPS, 2)).detach().requires_grad_(), -torch.rand(2, device="cuda"), b, c


def _scanned(x: torch.Tensor, dt: torch.Tensor, decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    state, found = x.new_zeros(1, 2, 32, 32), []
    for step in range(_STEPS):
        added = torch.einsum("bh,bhp,bn->bhpn", dt[:, step], x[:, step], b[:, step, 0])
        state = state * (dt[:, step] * decay).exp()[..., None, None] + added
        found.append(torch.einsum("bhpn,bn->bhp", state, c[:, step, 0]))
    return torch.stack(found, 1)


ENTRIES = [
    Entry("mamba_ssm", "layer_norm", lambda: (drawn(32, 64), drawn(64), drawn(64)),
          _function("layer_norm:layer_norm_fn"),
          lambda x, w, b: F.layer_norm(x, (64,), w, b, 1e-6)),
    Entry("mamba_ssm", "layernorm_gated", lambda: (drawn(32, 64), drawn(64)),
          lambda x, w: _function("layernorm_gated:rmsnorm_fn")(x, w, None),
          lambda x, w: F.rms_norm(x, (64,), w, 1e-6)),
    Entry("mamba_ssm", "selective_state_update", _update, _updated("selective_state_update"),
          _updated("selective_state_update_ref")),
    Entry("mamba_ssm", "chunk_scan_combined", _scan,
          lambda *given: _function("ssd_combined:mamba_chunk_scan_combined")(*given, _CHUNK), _scanned),
    Entry("mamba_ssm", "k_activations", lambda: (drawn(32, 128, gradient=False),),
          _function("k_activations:_swiglu_fwd"), lambda x: F.silu(x[:, :64]) * x[:, 64:]),
]  # fmt: skip
