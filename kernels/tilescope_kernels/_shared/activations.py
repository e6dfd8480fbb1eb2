"""Activations and their derivatives on fp32 tiles, fused into other kernels.

``ACTIVATION`` is 0 for SiLU, 1 for GELU by the error function and 2 for GELU by tanh.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _gate(x, ACTIVATION: tl.constexpr):
    """The gate of an activation. Every activation here is ``x * gate(x)``."""
    if ACTIVATION == 0:
        return 1.0 / (1.0 + tl.exp(-x))
    elif ACTIVATION == 1:
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        # (1 + tanh(u)) / 2 is the logistic function of 2u, with u = sqrt(2 / pi) * (x + 0.044715 x^3).
        return 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """SiLU, GELU or its tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415) of ``x``."""
    return x * _gate(x, ACTIVATION)


@triton.jit
def activate_with_derivative(x, ACTIVATION: tl.constexpr):
    """The activation of ``x`` and its derivative ``gate + x * gate'``."""
    gate = _gate(x, ACTIVATION)
    if ACTIVATION == 0:
        slope = gate * (1.0 - gate)
    elif ACTIVATION == 1:
        slope = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    else:
        slope = gate * (1.0 - gate) * (1.5957691216057308 * (1.0 + 0.134145 * x * x))
    return x * gate, gate + x * slope
