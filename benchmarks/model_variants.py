"""The variants of kernels that shapes choose between, and how to leave one out.

A variant has a gate: a function of the library that says whether the variant serves a call. ``watched`` notes which gates opened, and
``without`` closes one, so that the next variant serves.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

_SHUT: Callable[[Any], Any] = lambda result: None  # noqa: E731
_FALSE: Callable[[Any], Any] = lambda result: False  # noqa: E731


def _two_warpgroups(result: Any) -> Any:
    """Attention's config with warpgroups that share queries, or with three of them, replaced by that of two."""
    configs = importlib.import_module("tilescope_kernels.attention.attention_configs")
    odd = configs._SPECIALIZED_SHARED, configs._SPECIALIZED_NARROW
    return configs._SPECIALIZED if result in odd else result


#: By variant: where its gate is looked up, what the gate says instead, and whether its result means that the variant serves.
VARIANTS: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], bool]]] = {
    "products: pairs of SMs": ("matrix_products.matmul_tilings:plan_of_pairs", _SHUT, bool),
    "products: Gluon": ("matrix_products.matmul_tilings:plan", _SHUT, bool),
    "products: small tiles": ("matrix_products.split_k:plan", _SHUT, bool),
    "8-bit products: small tiles": ("matrix_products.bytes_product:bytes_plan", _SHUT, bool),
    "8-bit blocks: Gluon": ("matrix_products.fp8_blocks_hopper:serves", _FALSE, bool),
    "INT8 weights: Gluon": ("matrix_products.w8a16_hopper:plan", _SHUT, bool),
    "attention: decode": ("attention.attention_configs:decode_serves", _FALSE, bool),
    "attention: Gluon": ("attention.attention_configs:_specialized", _SHUT, bool),
    "attention: shared or three warpgroups": (
        "attention.attention_configs:_specialized",
        _two_warpgroups,
        lambda result: _two_warpgroups(result) is not result,
    ),
    "attention: Gluon gradient": ("attention.attention_configs:specializes_backward", _FALSE, bool),
    "attention: shared gradient": ("attention.hopper_gradients:shares", lambda result: 1, lambda result: result > 1),
    "attention: few rows' gradient": ("attention.attention_configs:few", _FALSE, bool),
    "paged attention: spans": ("attention.paged:_spans", lambda result: 1, lambda result: result > 1),
    "convolution: TMA": ("convolution.conv2d:_tma_serves", _FALSE, bool),
    "softmax: held rows": ("reductions.softmax_long:softmax_with_held_rows", _FALSE, bool),
    "softmax: ring of wide rows": ("reductions.softmax_long:softmax_backward_in_parts", _FALSE, bool),
    "norms: ring of wide rows": ("norms.wide_rows:ring", _SHUT, bool),
    "LayerNorm: unaligned rows": ("norms.layer_norm:serves_unaligned", _FALSE, bool),
    "RMSNorm: unaligned rows": ("norms.rms_norm:serves_unaligned", _FALSE, bool),
    "norms: unaligned gradient": ("norms.special_rows_backward:serves_unaligned", _FALSE, bool),
    "norms: short rows' gradient": ("norms.special_rows_backward:serves_short_rows", _FALSE, bool),
    "LayerNorm: shared gradient": ("norms.layer_norm_backward:_plan", _SHUT, bool),
    "cross-entropy: resident rows": ("losses.cross_entropy:plan", _SHUT, bool),
    "linear cross-entropy: logits in the gradient": ("losses.logits_in_gradient:plan", _SHUT, bool),
    "linear cross-entropy: Gluon sum": ("losses.accumulate_hopper:_serves", _FALSE, bool),
}  # fmt: skip


def _gate(variant: str) -> tuple[Any, str] | None:
    """The module and the name of a variant's gate; None where the library has it no more."""
    module, name = VARIANTS[variant][0].split(":")
    try:
        found = importlib.import_module(f"tilescope_kernels.{module}")
    except ModuleNotFoundError:
        return None
    return (found, name) if hasattr(found, name) else None


@contextlib.contextmanager
def _replaced(module: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """``module.name`` with ``change`` applied to its results."""
    original = getattr(module, name)
    setattr(module, name, lambda *args, **named: change(original(*args, **named)))
    _forget()
    try:
        yield
    finally:
        setattr(module, name, original)
        _forget()


def _forget() -> None:
    """Clears what launchers remember of their choices."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tilescope_kernels.") and isinstance(plans := vars(module).get("_PLANS"), dict):
            plans.clear()


@contextlib.contextmanager
def without(variant: str) -> Iterator[None]:
    """In the context the variant serves no call."""
    if (gate := _gate(variant)) is None:
        raise ValueError(f"the library has no gate of {variant!r}")
    _, shut, serves = VARIANTS[variant]
    with _replaced(*gate, lambda result: shut(result) if serves(result) else result):
        yield


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Yields a list that receives the variants that serve the calls in the context, each once."""
    found: list[str] = []

    def noted(variant: str) -> Callable[[Any], Any]:
        def change(result: Any) -> Any:
            if VARIANTS[variant][2](result) and variant not in found:
                found.append(variant)
            return result

        return change

    with contextlib.ExitStack() as stack:
        for variant in VARIANTS:
            if gate := _gate(variant):
                stack.enter_context(_replaced(*gate, noted(variant)))
        yield found
