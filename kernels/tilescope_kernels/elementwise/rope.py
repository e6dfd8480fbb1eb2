"""Rotary position embedding of queries and keys in one pass over both, forward and backward, optionally in place.

Su et al., "RoFormer", arXiv:2104.09864, in the rotate-half form of Hugging Face's Llama and Liger-Kernel: a head's first and
second half have the two coordinates of each rotated plane, and ``cos`` and ``sin`` hold every angle twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_tensors, check_together, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import neighbours, operator, pack, rows_like, unpack
from tilescope_kernels._shared.reach import SECOND_AXIS, slabs
from tilescope_kernels._shared.row_tiles import aligned
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn, peer


@triton.jit
def _tile_of(head, head_stride, heads, half, HALF: tl.constexpr, VECTOR: tl.constexpr):
    """Offsets (heads, HALF) of the first halves of some heads of one token, and which of them exist."""
    column = tl.arange(0, HALF)[None, :]
    return head.to(tl.int64) * aligned(head_stride, VECTOR) + column, (head < heads) & (column < half)


@triton.jit
def _load_heads(
    x_ptr, first, head_stride, heads, half,
    ROWS: tl.constexpr, STEPS: tl.constexpr, HALF: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The halves of ``STEPS`` tiles of ``ROWS`` heads."""
    halves = ()
    for i in tl.static_range(STEPS):
        offsets, mask = _tile_of(first + i * ROWS, head_stride, heads, half, HALF, VECTOR)
        halves += ((tl.load(x_ptr + offsets, mask=mask), tl.load(x_ptr + offsets + half, mask=mask)),)
    return halves


@triton.jit
def _store_heads(
    out_ptr, halves, first, head_stride, heads, half, cos_1, cos_2, sin_1, sin_2,
    ROWS: tl.constexpr, STEPS: tl.constexpr, HALF: tl.constexpr, VECTOR: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotate heads and store them; ``cos_1`` and ``cos_2`` are of a head's two halves."""
    for i in tl.static_range(STEPS):
        x_1 = halves[i][0].to(tl.float32)
        x_2 = halves[i][1].to(tl.float32)
        if INVERSE:  # the transposed rotation, for gradients
            y_1 = x_1 * cos_1 + x_2 * sin_2
            y_2 = x_2 * cos_2 - x_1 * sin_1
        else:
            y_1 = x_1 * cos_1 - x_2 * sin_1
            y_2 = x_2 * cos_2 + x_1 * sin_2
        offsets, mask = _tile_of(first + i * ROWS, head_stride, heads, half, HALF, VECTOR)
        tl.store(out_ptr + offsets, y_1.to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(out_ptr + offsets + half, y_2.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _token_of(ptr, batch, batch_stride, token, token_stride, VECTOR: tl.constexpr):
    return ptr + batch * aligned(batch_stride, VECTOR) + token * aligned(token_stride, VECTOR)


@triton.jit
def rope_kernel(
    q_out_ptr, k_out_ptr, q_ptr, k_ptr, cos_ptr, sin_ptr,
    q_out_batch, q_out_head, q_out_token, k_out_batch, k_out_head, k_out_token,
    q_batch, q_head, q_token, k_batch, k_head, k_token, table_batch, table_token,
    tokens, q_heads, k_heads, half,
    ROWS: tl.constexpr, Q_STEPS: tl.constexpr, K_STEPS: tl.constexpr, HALF: tl.constexpr, VECTOR: tl.constexpr,
    INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotate ``ROWS * Q_STEPS`` query heads and ``ROWS * K_STEPS`` key heads of one token per program. The outputs may be the inputs.

    ``half``, half a head's columns, and all strides are multiples of ``VECTOR``.
    """
    half = aligned(half, VECTOR)
    batch = (tl.program_id(0) // tokens).to(tl.int64)
    token = (tl.program_id(0) % tokens).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    q_first = tl.program_id(1) * ROWS * Q_STEPS + row
    k_first = tl.program_id(1) * ROWS * K_STEPS + row
    # All loads come before the stores, which might be to the same addresses, so that they are in flight together.
    q_ptr = _token_of(q_ptr, batch, q_batch, token, q_token, VECTOR)
    q = _load_heads(q_ptr, q_first, q_head, q_heads, half, ROWS, Q_STEPS, HALF, VECTOR)
    k_ptr = _token_of(k_ptr, batch, k_batch, token, k_token, VECTOR)
    k = _load_heads(k_ptr, k_first, k_head, k_heads, half, ROWS, K_STEPS, HALF, VECTOR)
    # A tile's every row loads the tables' row, from L1: in one row's layout it would have to pass shared memory. The tables are
    # read again for other groups of heads and, if batches share them, for every batch: keep them in cache.
    column = tl.arange(0, HALF)[None, :] + 0 * row
    inside = column < half
    cos_ptr = _token_of(cos_ptr, batch, table_batch, token, table_token, VECTOR) + column
    sin_ptr = _token_of(sin_ptr, batch, table_batch, token, table_token, VECTOR) + column
    cos_1 = tl.load(cos_ptr, mask=inside, eviction_policy="evict_last").to(tl.float32)
    cos_2 = tl.load(cos_ptr + half, mask=inside, eviction_policy="evict_last").to(tl.float32)
    sin_1 = tl.load(sin_ptr, mask=inside, eviction_policy="evict_last").to(tl.float32)
    sin_2 = tl.load(sin_ptr + half, mask=inside, eviction_policy="evict_last").to(tl.float32)
    q_out_ptr = _token_of(q_out_ptr, batch, q_out_batch, token, q_out_token, VECTOR)
    _store_heads(
        q_out_ptr, q, q_first, q_out_head, q_heads, half, cos_1, cos_2, sin_1, sin_2,
        ROWS, Q_STEPS, HALF, VECTOR, INVERSE,
    )  # fmt: skip
    k_out_ptr = _token_of(k_out_ptr, batch, k_out_batch, token, k_out_token, VECTOR)
    _store_heads(
        k_out_ptr, k, k_first, k_out_head, k_heads, half, cos_1, cos_2, sin_1, sin_2,
        ROWS, K_STEPS, HALF, VECTOR, INVERSE,
    )  # fmt: skip


#: ``HEADS`` per program share one row of the tables. 32 heads of 128 elements in two warps are eight 16-byte accesses per
#: thread at 16 bits.
CONFIGS = tuple(
    {"HEADS": heads, "num_warps": warps}
    for heads, warps in ((32, 2), (32, 1), (8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4), (32, 4), (32, 8))
)


def _default(q: torch.Tensor) -> Mapping[str, int]:
    """Projections give adjacent heads, which a program reads together; gradients have them apart. Few tokens get more programs."""
    tokens, every = q.shape[0] * q.shape[2], multiprocessors(q)
    if tokens <= every // 2:
        return CONFIGS[4]
    if q.stride(1) >= q.stride(2) or (tokens <= 4 * every and q.shape[3] > 128):
        return CONFIGS[2]
    return CONFIGS[1] if tokens <= 4 * every else CONFIGS[0]


def _launch(
    q_out: torch.Tensor, k_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    inverse: bool, config: str,
) -> None:  # fmt: skip
    batches, _, tokens, columns = q.shape
    heads = max(q.shape[1], k.shape[1])
    if batches * tokens * heads * columns == 0:
        return
    chosen = unpack(config) or _default(q)
    groups = cdiv(heads, chosen["HEADS"])
    if groups > SECOND_AXIS:
        for parts in slabs(SECOND_AXIS * chosen["HEADS"], q_out, k_out, q, k, axis=1):
            _launch(*parts, cos, sin, inverse, config)
        return
    strides = [stride for tensor in (q_out, k_out, q, k) for stride in tensor.stride()[:3]]
    strides += (0 if cos.shape[0] == 1 else cos.stride(0), cos.stride(1))
    half, width = columns // 2, 16 // q.element_size()
    vector = width if all(extent % width == 0 for extent in (half, *strides)) else 1
    block = next_power_of_2(half)
    # One access of 16 bytes per thread for each half of a tile of heads.
    rows = max(1, min(next_power_of_2(cdiv(heads, groups)), 32 * chosen["num_warps"] * width // block))
    launch(
        rope_kernel, (batches * tokens, groups),
        q_out, k_out, q, k, cos, sin, *strides, tokens, q.shape[1], k.shape[1], half,
        ROWS=rows, Q_STEPS=cdiv(cdiv(q.shape[1], groups), rows), K_STEPS=cdiv(cdiv(k.shape[1], groups), rows),
        HALF=block, VECTOR=vector, INVERSE=inverse, num_warps=chosen["num_warps"],
    )  # fmt: skip


@operator("rope", fake=lambda q, k, *_: (rows_like(q), rows_like(k)))
def _rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inverse: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:
    q_out, k_out = rows_like(q), rows_like(k)
    _launch(q_out, k_out, q, k, cos, sin, inverse, config)
    return q_out, k_out


@operator("rope_", mutates=("q", "k"), fake=lambda *_: None)
def _rope_in_place(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inverse: bool, config: str
) -> None:
    _launch(q, k, q, k, cos, sin, inverse, config)


@_rope.gradient(lambda q, k, cos, sin, *_: (cos, sin), of=2)
def _differentiate(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    inverse, config = ctx.rest
    # The gradient is a rotation by the same operator, so gradients of every order exist.
    return _rope(neighbours(dq), neighbours(dk), *ctx.saved_tensors, not inverse, config)


class _InPlace(torch.autograd.Function):
    """Autograd of the rotation in place, which an operator that mutates its inputs cannot have."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, config: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _rope_in_place(q, k, cos, sin, False, config)
        ctx.mark_dirty(q, k)
        ctx.save_for_backward(cos, sin)
        ctx.config = config
        return q, k

    @staticmethod
    def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        # Not in place: a gradient may have other users.
        return *_rope(neighbours(dq), neighbours(dk), cos, sin, True, ctx.config), None, None, None


def _check(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    check_tensors(q=q, k=k)
    check_tensors(cos=cos, sin=sin)
    check_together(q=q, cos=cos, sin=sin)
    for name, tensor in (("cos", cos), ("sin", sin)):
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise ValueError(f"{name} requires a gradient and rope has none for it: pass {name}.detach()")
    if q.dim() != 4:
        raise ValueError(f"q has {q.dim()} dimensions: give (batch, heads, tokens, columns)")
    batches, _, tokens, columns = q.shape
    if k.dim() != 4 or (k.shape[0], *k.shape[2:]) != (batches, tokens, columns):
        raise ValueError(f"k has shape {tuple(k.shape)}: give ({batches}, heads, {tokens}, {columns}), as q")
    if columns % 2:
        raise ValueError(f"q has {columns} columns a head: a rotation pairs them, so give an even number")
    for name, tensor in (("cos", cos), ("sin", sin)):
        if tensor.dim() != 3 or tensor.shape[0] not in (1, batches) or tuple(tensor.shape[1:]) != (tokens, columns):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: give (1 or {batches}, {tokens}, {columns}), which q needs"
            )


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, inplace: bool = False,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """``(x * cos + rotate_half(x) * sin for x in (q, k))``, in fp32, rounded once; differentiable in q and k.

    As Hugging Face's ``apply_rotary_pos_emb``: ``q`` (batch, query heads, tokens, columns) and ``k`` (batch, key heads,
    tokens, columns) of one dtype (fp32, fp16, bf16), any strides; ``cos`` and ``sin`` (1 or batch, tokens, columns), both of
    one of these dtypes. ``rotate_half(x)`` is ``(-second half, first half)``. With ``inplace``, q and k are overwritten and
    returned, which autograd does not allow for leaves that require a gradient. ``config`` is one of ``CONFIGS``. Raises
    ValueError, naming the argument, for other dtypes, shapes that do not fit, and devices without CUDA.
    """
    if not use_triton():
        rotated = reference(q, k, cos, sin)
        return (q.copy_(rotated[0]), k.copy_(rotated[1])) if inplace else rotated
    _check(q, k, cos, sin)
    if cos.shape != sin.shape:  # one for all batches, the other for each
        cos, sin = torch.broadcast_tensors(cos, sin)
    if sin.stride() != cos.stride() or cos.stride(2) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    if inplace:
        for name, tensor in (("q", q), ("k", k)):
            if tensor.stride(3) != 1 and tensor.numel():
                raise ValueError(f"{name} has elements {tensor.stride(3)} apart: in place they must be neighbours")
            if any(extent > 1 and stride == 0 for extent, stride in zip(tensor.shape, tensor.stride(), strict=True)):
                raise ValueError(f"{name} is expanded: its elements share memory and cannot be written in place")
        return _InPlace.apply(q, k, cos, sin, pack(config))
    return _rope(neighbours(q), neighbours(k), cos, sin, False, pack(config))


class RoPE(torch.nn.Module):
    """Rotary embedding of heads of ``columns`` elements: plane i rotates by ``theta ** (-2i / columns)`` per position."""

    def __init__(self, columns: int, theta: float = 10000.0) -> None:
        super().__init__()
        self.columns, self.theta = columns, theta

    def extra_repr(self) -> str:
        return f"{self.columns}, theta={self.theta}"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate ``q`` and ``k``, as ``rope``, to ``positions`` (1 or batch, tokens), by default 0, 1, ..."""
        if positions is None:
            positions = torch.arange(q.shape[2], device=q.device)[None]
        # Not a buffer: ``model.bfloat16()`` would round it, and the error of an angle grows with the position.
        planes = torch.arange(0, self.columns, 2, dtype=torch.float32, device=q.device)
        angles = positions[..., None].float() * self.theta ** (-planes / self.columns)
        angles = torch.cat((angles, angles), dim=-1)
        return rope(q, k, angles.cos(), angles.sin())


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in plain PyTorch, as model code writes it."""
    cos, sin = cos[:, None], sin[:, None]
    q_out, k_out = (x * cos + _rotate_half(x) * sin for x in (q, k))
    return q_out.to(q.dtype), k_out.to(k.dtype)


@drawn
def inputs(draw: Draw, batch: int, q_heads: int, k_heads: int, tokens: int, columns: int) -> dict[str, Any]:
    """``q`` and ``k`` as projections give them: (batch, tokens, heads, columns) with heads transposed first. Llama's angles."""

    def heads_first(heads: int) -> torch.Tensor:
        return draw(batch, tokens, heads, columns).transpose(1, 2).requires_grad_()

    q, k = heads_first(q_heads), heads_first(k_heads)
    plane = torch.arange(0, columns, 2, dtype=torch.float32, device=draw.device)
    angles = torch.arange(tokens, device=draw.device)[:, None] * 10000.0 ** (-plane / columns)
    angles = torch.cat((angles, angles), dim=-1)[None]
    return {"q": q, "k": k, "cos": angles.cos().to(q.dtype), "sin": angles.sin().to(q.dtype)}


def cost(workload: Workload, direction: str) -> Cost:
    """Reads q, k (backward, their gradients) and both tables, writes as many elements of q and k. Three operations per element."""
    batch, q_heads, k_heads, tokens, columns = workload.dims.values()
    elements = batch * (q_heads + k_heads) * tokens * columns
    size = elements * workload.itemsize
    tables = 2 * tokens * columns * workload.itemsize
    return Cost(flops=3 * elements, bytes_read=size + tables, bytes_written=size)


SPEC = declare(
    "rope", "rotary embedding of q and k", "batch q_heads k_heads tokens columns",
    "small 1x32x8x128x128-bf16, medium 1x32x8x4096x128-bf16, large 4x32x8x8192x128-bf16, ragged 3x7x3x781x80-fp32",
    triton=Implementation(rope, "one pass over q and k", CONFIGS),
    eager=Implementation(reference, "halves joined, two products and a sum, of q and of k"),
    liger=peer("liger-kernel", "liger_kernel.ops.rope:LigerRopeFunction.apply", "Liger-Kernel's, in place"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 8e-4, "bf16": 6e-3},
    passes="forward backward",
)  # fmt: skip
