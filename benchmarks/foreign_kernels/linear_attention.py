"""flash-linear-attention's operators and modules (``flash-linear-attention``), those with a simple recurrence against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.foreign_kernels import Entry, attribute, drawn, first

#: Extents of all operators unless one says otherwise: batch, steps, heads, channels of a head.
_BATCH, _STEPS, _HEADS, _WIDTH = 1, 128, 2, 32
#: Relative error of operators that compute in bf16.
_COARSE = 2e-2

Draw = Callable[[], torch.Tensor]


def _heads(*last: int) -> torch.Tensor:
    return drawn(_BATCH, _STEPS, _HEADS, *last)


def _x() -> torch.Tensor:
    """Queries, keys or values."""
    return _heads(_WIDTH)


def _gates(*last: int) -> torch.Tensor:
    """Logarithms of what a state keeps at each step."""
    return F.logsigmoid(_heads(*last)).detach().requires_grad_()


def _unit() -> torch.Tensor:
    """Keys of length one."""
    return F.normalize(_x().detach(), dim=-1).requires_grad_()


def _rates() -> torch.Tensor:
    """How much of a step's value is written."""
    return torch.rand(_BATCH, _STEPS, _HEADS, device="cuda").requires_grad_()


def _columns() -> torch.Tensor:
    """Rates of steps, one a column."""
    return torch.rand(_BATCH, _STEPS, _HEADS, 1, device="cuda").requires_grad_()


def _each(*draw: Draw) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(one() for one in draw)


def _recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: Callable[[int], Any] = lambda step: 1.0
) -> torch.Tensor:
    """Linear attention with a decay of the state, step by step."""
    state, found = q.new_zeros(_BATCH, _HEADS, _WIDTH, _WIDTH), []
    for step in range(_STEPS):
        state = state * kept(step) + k[:, step, :, :, None] * v[:, step, :, None, :]
        found.append(torch.einsum("bhd,bhdv->bhv", q[:, step] * _WIDTH**-0.5, state))
    return torch.stack(found, 1)


def _by_channel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    return _recurrence(q, k, v, lambda step: gates[:, step].exp()[..., None])


def _by_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    return _recurrence(q, k, v, lambda step: gates[:, step].exp()[..., None, None])


def _retention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    kept = 1 - 2.0 ** (-5 - torch.arange(_HEADS, device=q.device).float())
    return _recurrence(q, k, v, lambda step: kept[None, :, None, None])


def _delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rates: torch.Tensor, gates: torch.Tensor | None = None
) -> torch.Tensor:
    """The delta rule: what the state has for a key is replaced in part by its value."""
    state, found = q.new_zeros(_BATCH, _HEADS, _WIDTH, _WIDTH), []
    for step in range(_STEPS):
        if gates is not None:
            state = state * gates[:, step].exp()[..., None, None]
        new = (v[:, step] - torch.einsum("bhd,bhdv->bhv", k[:, step], state)) * rates[:, step, :, None]
        state = state + k[:, step, :, :, None] * new[:, :, None, :]
        found.append(torch.einsum("bhd,bhdv->bhv", q[:, step] * _WIDTH**-0.5, state))
    return torch.stack(found, 1)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    turned = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*turned, is_causal=True).transpose(1, 2)


def _operator(
    path: str,
    *draw: Draw,
    reference: Callable[..., Any] | None = None,
    bf16: Sequence[int] = (),
    with_gradient: bool = True,
    **named: Any,
) -> Entry:
    """``fla.ops.PATH(*given, **named)``, with arguments at the places ``bf16`` converted. A name that begins with ``_`` is of a given one."""
    places = {name.removeprefix("_"): place for name, place in named.items() if name.startswith("_")}
    rest = {name: value for name, value in named.items() if not name.startswith("_")}

    def given() -> tuple[torch.Tensor, ...]:
        return tuple(one() if with_gradient else one().detach() for one in draw)

    def call(*given: torch.Tensor) -> Any:
        passed = [one.bfloat16() if place in bf16 else one for place, one in enumerate(given)]
        by_name = {name: passed[place] for name, place in places.items()}
        positional = [one for place, one in enumerate(passed) if place not in places.values()]
        return first(attribute(f"fla.ops.{path}")(*positional, **by_name, **rest))

    return Entry("fla", path.rpartition(":")[2], given, call, reference, _COARSE if bf16 else 1e-5)


def _module(
    path: str,
    *draw: Draw,
    call: Callable[..., Any] = lambda made, *given: made(*given),
    reference: Callable[..., Any] | None = None,
) -> Entry:
    """``fla.modules.PATH``, called by ``call``."""
    return Entry(
        "fla", path.rpartition(":")[2], _each(*draw),
        lambda *given: first(call(attribute(f"fla.modules.{path}"), *given)), reference,
    )  # fmt: skip


def _slots() -> torch.Tensor:
    return _heads(16)


def _bonus() -> torch.Tensor:
    return drawn(_HEADS, _WIDTH)


def _sequence() -> torch.Tensor:
    return drawn(_BATCH, _STEPS, 64)


def _narrow() -> torch.Tensor:
    return _heads(16)


def _wide() -> torch.Tensor:
    return _heads(64)


def _rows() -> torch.Tensor:
    return drawn(32, 64)


def _weight() -> torch.Tensor:
    return drawn(64)


_QKV = (_x, _x, _x)
_DELTA = (_x, _unit, _x, _rates)

ENTRIES = [
    _operator("gla:chunk_gla", *_QKV, lambda: _gates(_WIDTH), reference=_by_channel),
    _operator("gla:fused_recurrent_gla", *_QKV, lambda: _gates(_WIDTH), reference=_by_channel),
    _operator("simple_gla:chunk_simple_gla", *_QKV, _gates, reference=_by_head),
    _operator("simple_gla:fused_recurrent_simple_gla", *_QKV, _gates, reference=_by_head),
    _operator("simple_gla:parallel_simple_gla", *_QKV, _gates, reference=_by_head),
    _operator("retention:chunk_retention", *_QKV, reference=_retention),
    _operator("retention:parallel_retention", *_QKV, reference=_retention),
    _operator("retention:fused_recurrent_retention", *_QKV),
    _operator("linear_attn:chunk_linear_attn", *_QKV, reference=_recurrence, normalize=False),
    _operator("linear_attn:fused_chunk_linear_attn", *_QKV, reference=_recurrence, normalize=False),
    _operator("linear_attn:fused_recurrent_linear_attn", *_QKV, reference=_recurrence, normalize=False),
    _operator("delta_rule:chunk_delta_rule", *_DELTA, reference=_delta, bf16=range(4)),
    _operator("delta_rule:fused_recurrent_delta_rule", *_DELTA, reference=_delta),
    _operator("gated_delta_rule:chunk_gated_delta_rule", *_DELTA, _gates, _beta=3, _g=4, reference=_delta, bf16=range(4)),
    _operator("gated_delta_rule:fused_recurrent_gated_delta_rule", *_DELTA, _gates, _beta=3, _g=4, reference=_delta,
              with_gradient=False),
    _operator("hgrn:chunk_hgrn", _sequence, lambda: F.logsigmoid(_sequence()).detach().requires_grad_()),
    _operator("hgrn:fused_recurrent_hgrn", _sequence, lambda: F.logsigmoid(_sequence()).detach().requires_grad_()),
    _operator("gsa:chunk_gsa", *_QKV, _slots, lambda: _gates(16)),
    _operator("rwkv6:chunk_rwkv6", *_QKV, lambda: _gates(_WIDTH), _bonus),
    _operator("rwkv6:fused_recurrent_rwkv6", *_QKV, lambda: _gates(_WIDTH), _bonus),
    _operator("rwkv7:chunk_rwkv7", _x, lambda: _gates(_WIDTH), _x, _x, _unit, _unit, bf16=range(6)),
    _operator("kda:chunk_kda", *_DELTA, lambda: _gates(_WIDTH), _beta=3, _g=4, bf16=range(4)),
    _operator("attn.parallel:parallel_attn", *_QKV, reference=_attention),
    _operator("forgetting_attn:parallel_forgetting_attn", *_QKV, _gates),
    _operator("stickbreaking_attn:parallel_stickbreaking_attn", *_QKV),
    _operator("path_attn:parallel_path_attn", *_QKV, _unit, _rates, bf16=range(3)),
    _operator("nsa:parallel_nsa", lambda: drawn(1, 64, 16, 32), lambda: drawn(1, 64, 1, 32), lambda: drawn(1, 64, 1, 32),
              lambda: torch.rand(1, 64, 16, device="cuda"), lambda: torch.rand(1, 64, 16, device="cuda"),
              lambda: torch.zeros(1, 64, 1, 1, dtype=torch.long, device="cuda"), _block_indices=5, block_size=32),
    _operator("comba:chunk_comba", *_DELTA, _unit, _gates, _beta=3, _p=4, _g=5, bf16=range(5)),
    _operator("based:parallel_based", _narrow, _narrow, _x),
    _operator("rebased:parallel_rebased", _narrow, _narrow, _x),
    _operator("lightning_attn:chunk_lightning_attn", *_QKV, layer_idx=0, num_layers=12),
    _operator("mesa_net:chunk_mesa_net", *_QKV, _gates, _rates, lambda: torch.rand(_HEADS, _WIDTH, device="cuda") + 0.5,
              bf16=(0, 1, 2, 4), max_CG_iteration=3),
    _operator("ttt:chunk_ttt_linear", *_QKV, _bonus, _bonus, _columns,
              bf16=range(6), chunk_size=16),
    _operator("rwkv4:fused_recurrent_rwkv4", lambda: -drawn(32).detach().exp().requires_grad_(), lambda: drawn(32),
              lambda: drawn(1, 32, 32), lambda: drawn(1, 32, 32), lambda: torch.zeros(1, 3, 1, 32, device="cuda")),
    _operator("abc:chunk_abc", *_QKV, _slots),
    _operator("log_linear_attn:chunk_log_linear_attn", _wide, _wide, _wide, _gates,
              lambda: _heads(8).detach().sigmoid(), bf16=range(5)),
    _module("convolution:ShortConvolution", lambda: drawn(1, 64, 32), call=lambda made, x: made(32, 4).cuda()(x)),
    _module("layernorm:rms_norm", _rows, _weight, call=lambda made, x, w: made(x, w, None),
            reference=lambda x, w: F.rms_norm(x, (64,), w, 1e-5)),
    _module("layernorm:layer_norm", _rows, _weight, _weight, reference=lambda x, w, b: F.layer_norm(x, (64,), w, b)),
    _module("l2norm:l2norm", _rows, reference=lambda x: F.normalize(x, dim=-1)),
    _module("fused_cross_entropy:FusedCrossEntropyLoss", lambda: drawn(32, 512),
            lambda: torch.randint(0, 512, (32,), device="cuda"), call=lambda made, x, classes: made()(x, classes),
            reference=F.cross_entropy),
    _module("activations:swiglu", lambda: drawn(32, 128), lambda: drawn(32, 128), reference=lambda a, b: F.silu(a) * b),
    _module("rotary:RotaryEmbedding", lambda: drawn(1, 32, 2, 64), call=lambda made, x: made(64).cuda()(x, x.clone())),
    _module("token_shift:token_shift", lambda: drawn(1, 64, 32), reference=lambda x: F.pad(x, (0, 0, 1, -1)) - x),
    _module("fused_norm_gate:FusedRMSNormGated", _rows, _rows, call=lambda made, x, gate: made(64).cuda()(x, gate),
            reference=lambda x, gate: F.rms_norm(x, (64,), None, 1e-5) * F.silu(gate)),
]  # fmt: skip
