"""Dropout whose backward pass draws the same numbers again: no mask is kept.

Numbers come from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a function of the seed and of
where an element is, in 7 rounds, the fewest that passed the authors' tests. One call makes 128 bits, of which an element takes 16: with more it
would be the arithmetic that bounds 16-bit tensors, and not memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.declarations import compiled, generator, normal
from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import check_tensors, split_config, use_triton
from tilescope_kernels._shared.operators import check_integers, operator, pack, remembered, unpack
from tilescope_kernels.spec import BACKWARD, FORWARD, Cost, Implementation, KernelSpec, Workload

#: Rounds of Philox, elements that share a call of it, and values that a number may have.
ROUNDS, SHARE, VALUES = 7, 8, 1 << 16


@triton.jit
def _drawn(seed, group, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Numbers below 65,536 for ``BLOCK`` elements; ``group`` (BLOCK / 8) counts their eights."""
    a, b, c, d = tl.randint4x(seed, group, n_rounds=ROUNDS)
    # A join adds the last dimension, which is the quickest: a group's words are in order, and their halves within them.
    words = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (BLOCK,)).to(tl.int32)


@triton.jit
def dropout_kernel(y_ptr, x_ptr, seed_ptr, n, dropped, scale, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Elements whose number is below ``dropped`` become zero, others are multiplied by ``scale``."""
    # Only the block's start needs 64 bits: offsets within a block stay 32 bits wide and cost half the registers.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    number = _drawn(tl.load(seed_ptr), start // 8 + tl.arange(0, BLOCK // 8), BLOCK, ROUNDS)
    # A mask that does not end at a multiple of 16 bytes splits accesses into single elements: only the last block pays.
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
    """How many of the numbers drop an element, and what the others are multiplied by."""
    return round(p * VALUES), 0.0 if p == 1 else 1 / (1 - p)


@operator("dropout")
def _dropout(x: torch.Tensor, seed: torch.Tensor, p: float, config: str) -> torch.Tensor:
    y = torch.empty_like(x)
    if y.numel():
        parameters, options = split_config(unpack(config) or CONFIGS[0])
        dropped, scale = _scaling(p)
        launch(
            dropout_kernel, (cdiv(y.numel(), parameters["BLOCK"]),),
            y, x, seed, y.numel(), dropped, scale,
            ROUNDS=ROUNDS, **parameters, **options,
        )  # fmt: skip
    return y


@_dropout.register_fake
def _(x: torch.Tensor, seed: torch.Tensor, p: float, config: str) -> torch.Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, seed, ctx.p, ctx.config = inputs
    ctx.save_for_backward(seed)


def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    (seed,) = ctx.saved_tensors
    return _dropout(dy.contiguous(), seed, ctx.p, ctx.config), None, None, None


_dropout.register_autograd(_differentiate, setup_context=_save)


@remembered
def dropout(
    x: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    seed: torch.Tensor | None = None,
    config: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """``x`` (fp32, fp16, bf16; any shape and strides) with elements dropped with probability ``p``, the others divided by 1 - ``p``.

    As ``torch.nn.functional.dropout``, but for which elements are dropped; the gradient drops the same, any number of times
    differentiable. ``p`` counts in steps of 1 / 65,536. ``seed`` is an int64 tensor of one element on the device of ``x``: the same one
    drops the same elements of tensors of one size on every GPU and in the interpreter. Without one it is drawn from PyTorch's
    generator of that device, which takes a launch, and is another one in each replay of a CUDA graph. The result is contiguous.
    ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for what it cannot serve.
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
    return _dropout(x.contiguous(), seed, float(p), pack(config))


class Dropout(torch.nn.Dropout):
    """``torch.nn.Dropout`` (same arguments, but never in place) that computes with ``dropout``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` (any shape) to the same shape. Raises ValueError as ``dropout`` does."""
        return dropout(input, self.p, self.training)


def _philox(seed: torch.Tensor, n: int) -> torch.Tensor:
    """The numbers of ``n`` elements as ``dropout_kernel`` draws them, by PyTorch's operations, in 64 bits."""
    most, lower = 0xFFFFFFFF, 0xFFFF
    group = torch.arange(cdiv(n, SHARE), device=seed.device)
    zero = torch.zeros_like(group)
    state, key = [group & most, group >> 32, zero, zero], [seed & most, (seed >> 32) & most]

    def product(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
        # In 16 bits at a time, for 64 bits have a sign.
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
    """The same elements dropped, in plain PyTorch."""
    dropped, scale = _scaling(p)
    below = (_philox(seed, x.numel()) < dropped).view(x.shape)
    return torch.where(below, torch.zeros((), dtype=x.dtype, device=x.device), x * scale)


def inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """``x`` of ``n`` elements, standard normal, of which one in ten is dropped."""
    x = normal((workload.dims["n"],), workload, device, generator(workload, device), requires_grad=True)
    return {"x": x, "p": 0.1, "seed": torch.full((1,), workload.seed, device=device)}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and the seed and writes y; backward has dy and dx instead. A multiplication an element; integers are not counted."""
    n, size = workload.elements, workload.elements * workload.itemsize
    return Cost(flops=n, bytes_read=size + 8, bytes_written=size)


def _seeded(x: torch.Tensor, p: float, seed: torch.Tensor, config: Mapping[str, int] | None = None) -> torch.Tensor:
    """``dropout`` with the spec's arguments."""
    return dropout(x, p, seed=seed, config=config)


SPEC = KernelSpec(
    name="dropout",
    summary="dropout with a mask that is drawn again",
    dims=("n",),
    implementations={
        "triton": Implementation(_seeded, "one pass, no mask in memory", CONFIGS),
        "eager": Implementation(reference, "the same numbers, one operation at a time"),
        "compile": Implementation(compiled(reference), "torch.compile of eager"),
    },
    reference=reference,
    inputs=inputs,
    workloads=(
        Workload({"n": 1 << 16}, "bf16", label="small"),
        Workload({"n": 1 << 24}, "bf16", label="medium"),
        Workload({"n": 1 << 28}, "bf16", label="large"),
        Workload({"n": 1823 * 781}, "bf16", label="ragged"),
        Workload({"n": 1 << 26}, "fp32", label="large-fp32"),
    ),
    cost=cost,
    tolerance={"fp32": 1e-6, "fp16": 8e-4, "bf16": 6e-3},
    passes=(FORWARD, BACKWARD),
)
