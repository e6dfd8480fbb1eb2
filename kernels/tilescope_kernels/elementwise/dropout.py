"""Dropout without a saved mask: the backward pass regenerates the random numbers.

They come from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a counter-based generator: a
function of the seed and the element's index. It takes 7 rounds, the fewest that passed the authors' tests. A call gives 128
bits, 16 for each of 8 elements: with more bits per element, 16-bit tensors would be bound by arithmetic instead of memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_integers, check_tensors, check_together, use_triton
from tilescope_kernels._shared.launching import cdiv, launch
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn

#: Rounds of Philox, elements per call, and values of a random number.
ROUNDS, SHARE, VALUES = 7, 8, 1 << 16


@triton.jit
def _drawn(seed, group, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Random numbers below 65,536 for ``BLOCK`` elements. ``group`` (BLOCK / 8,) numbers the groups of eight elements."""
    a, b, c, d = tl.randint4x(seed, group, n_rounds=ROUNDS)
    # Joins add an innermost dimension: the four words of a group come in order, and within each its two halves.
    words = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (BLOCK,)).to(tl.int32)


@triton.jit
def dropout_kernel(y_ptr, x_ptr, seed_ptr, n, dropped, scale, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Zero the elements whose random number is below ``dropped``, multiply the others by ``scale``."""
    # Only the block's start needs 64 bits: 32-bit offsets within a block take half the registers.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    number = _drawn(tl.load(seed_ptr), start // 8 + tl.arange(0, BLOCK // 8), BLOCK, ROUNDS)
    # A mask whose end is no multiple of 16 bytes splits accesses into single elements: only the last block has one.
    if start + BLOCK <= n:
        x = tl.load(x_ptr + start + offsets).to(tl.float32)
        y = tl.where(number < dropped, 0.0, x * scale)
        tl.store(y_ptr + start + offsets, y.to(y_ptr.dtype.element_ty))
    else:
        x = tl.load(x_ptr + start + offsets, mask=offsets < n - start).to(tl.float32)
        y = tl.where(number < dropped, 0.0, x * scale)
        tl.store(y_ptr + start + offsets, y.to(y_ptr.dtype.element_ty), mask=offsets < n - start)


CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in ((2048, 4), (1024, 2), (1024, 4), (2048, 8), (4096, 4), (4096, 8), (8192, 8))
)


def _scaling(p: float) -> tuple[int, float]:
    """The random numbers that drop an element are those below the first result; the second is the scale of kept elements."""
    return round(p * VALUES), 0.0 if p == 1 else 1 / (1 - p)


@operator("dropout", fake=lambda x, *_: torch.empty_like(x))
def _dropout(x: torch.Tensor, seed: torch.Tensor, p: float, config: str) -> torch.Tensor:
    y = x.new_empty(x.shape)
    if n := y.numel():
        chosen = unpack(config) or CONFIGS[0]
        launch(dropout_kernel, (cdiv(n, chosen["BLOCK"]),), y, x, seed, n, *_scaling(p), ROUNDS=ROUNDS, **chosen)
    return y


@_dropout.gradient(lambda x, seed, *_: (seed,))
def _differentiate(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
    return _dropout(dy.contiguous(), *ctx.saved_tensors, *ctx.rest)


def dropout(
    x: torch.Tensor, p: float = 0.5, training: bool = True, *, seed: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Drop elements of ``x`` (fp32, fp16, bf16; any shape and strides) with probability ``p``; divide the others by 1 - ``p``.

    As ``torch.nn.functional.dropout``, except for which elements are dropped. The gradient drops the same ones; differentiable any number
    of times. ``p`` is rounded to a multiple of 1 / 65,536. ``seed`` is an int64 tensor of one element on the device of ``x``: for tensors
    of one size, the same seed drops the same elements on every GPU and in the interpreter. By default it is drawn from PyTorch's generator
    on that device, which costs a launch and gives a new seed in each replay of a CUDA graph. The result is contiguous. ``config`` is one of
    ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, a ``p`` outside 0 to 1, other seeds, and devices without CUDA.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}: give a probability from 0 to 1")
    if not training:
        return x
    if seed is None:
        seed = torch.empty(1, dtype=torch.int64, device=x.device).random_()
    if not use_triton():
        return reference(x, p, seed)
    check_tensors(x=x)
    check_integers((torch.int64,), seed=seed)
    if seed.numel() != 1:
        raise ValueError(f"seed has shape {tuple(seed.shape)}: give one element")
    check_together(x=x, seed=seed)
    return _dropout(x.contiguous(), seed, float(p), pack(config))


class Dropout(torch.nn.Dropout):
    """``torch.nn.Dropout``, never in place, computed by ``dropout``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Drop elements of ``input`` (any shape). Raises ValueError as ``dropout`` does."""
        return dropout(input, self.p, self.training)


def _philox(seed: torch.Tensor, n: int) -> torch.Tensor:
    """The random numbers of ``n`` elements as in ``dropout_kernel``, by PyTorch's operations on int64."""
    most, lower = 0xFFFFFFFF, 0xFFFF
    group = torch.arange(cdiv(n, SHARE), device=seed.device)
    zero = torch.zeros_like(group)
    state, key = [group & most, group >> 32, zero, zero], [seed & most, (seed >> 32) & most]

    def product(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
        # 32 x 32 bits in 16-bit halves, because int64 has a sign.
        low, high = word * (factor & lower), word * (factor >> 16)
        whole = low + ((high & lower) << 16)
        return ((high >> 16) + (whole >> 32)) & most, whole & most

    for _ in range(ROUNDS):
        high_0, low_0 = product(state[0], 0xD2511F53)
        high_2, low_2 = product(state[2], 0xCD9E8D57)
        state = [high_2 ^ state[1] ^ key[0], low_2, high_0 ^ state[3] ^ key[1], low_0]
        key = [(key[0] + 0x9E3779B9) & most, (key[1] + 0xBB67AE85) & most]
    return torch.stack([half for word in state for half in (word & lower, word >> 16)], 1).flatten()[:n]


def reference(x: torch.Tensor, p: float, seed: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch, which drops the same elements."""
    dropped, scale = _scaling(p)
    below = (_philox(seed, x.numel()) < dropped).view(x.shape)
    return torch.where(below, torch.zeros((), dtype=x.dtype, device=x.device), x * scale)


@drawn
def inputs(draw: Draw, n: int) -> dict[str, Any]:
    """``x`` of ``n`` elements, standard normal, ``p`` 0.1, and a seed."""
    seed = torch.full((1,), draw.workload.seed, device=draw.device)
    return {"x": draw(n, grad=True), "p": 0.1, "seed": seed}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and the seed and writes y; backward reads dy and writes dx. One multiplication per element, integers aside."""
    n, size = workload.elements, workload.bytes
    return Cost(flops=n, bytes_read=size + 8, bytes_written=size)


SPEC = declare(
    "dropout", "dropout with a mask that is drawn again", "n",
    "small 65536-bf16, medium 16777216-bf16, large 268435456-bf16, ragged 1423763-bf16, large-fp32 67108864-fp32",
    triton=Implementation(dropout, "one pass, no mask in memory", CONFIGS),
    eager=Implementation(reference, "the same numbers, one operation at a time"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 8e-4, "bf16": 6e-3},
    passes="forward backward",
)  # fmt: skip
