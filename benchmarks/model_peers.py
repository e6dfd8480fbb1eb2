"""Implementations by libraries that the catalog does not name: QuACK, FlashAttention-3 and -4. Each is left out unless it is installed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from tilescope_kernels.spec import Implementation


def _named(path: str) -> Callable[..., Any]:
    module, name = path.split(":")
    return functools.cache(lambda: getattr(importlib.import_module(module), name))


def _quack(path: str, *names: str, eps: bool = False, **more: Any) -> Callable[..., Any]:
    """``path`` called with the inputs ``names``, and the keyword ``eps`` of the same value."""
    function = _named(path)

    def call(**inputs: Any) -> Any:
        named = {"eps": inputs["eps"]} if eps and "eps" in inputs else {}
        return function()(*(inputs[name] for name in names), **named, **more)

    return call


def _flash(path: str) -> Callable[..., Any]:
    """FlashAttention's function, which takes (batch, rows, heads, columns)."""
    function = _named(path)

    def call(query: Any, key: Any, value: Any, is_causal: bool, enable_gqa: bool) -> Any:
        result = function()(*(each.transpose(1, 2) for each in (query, key, value)), causal=is_causal)
        return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

    return call


_FA3 = Implementation(
    _flash("flash_attn_interface:flash_attn_func"), "FlashAttention-3", requires=("flash_attn_interface",)
)
_FA4 = Implementation(_flash("flash_attn.cute:flash_attn_func"), "FlashAttention-4", requires=("flash_attn",))


def _of_quack(call: Callable[..., Any]) -> Implementation:
    return Implementation(call, "QuACK", requires=("quack",))


_MORE: Mapping[str, Mapping[str, Implementation]] = {
    "attention": {"fa3": _FA3, "fa4": _FA4},
    "causal_attention": {"fa3": _FA3, "fa4": _FA4},
    "softmax": {"quack": _of_quack(_quack("quack:softmax", "x"))},
    "rms_norm": {"quack": _of_quack(_quack("quack:rmsnorm", "x", "weight", eps=True))},
    "cross_entropy": {"quack": _of_quack(_quack("quack:cross_entropy", "x", "target", reduction="mean"))},
}


def implementations(kernel: str) -> Mapping[str, Implementation]:
    """More implementations of a kernel of the catalog, by name."""
    return _MORE.get(kernel, {})
