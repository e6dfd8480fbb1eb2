"""Fused scaled dot-product attention, ``softmax(q @ k.T * scale) @ v``: scores never reach memory.

FlashAttention-2 (Dao, arXiv:2307.08691) with grouped-query attention (Ainslie et al., arXiv:2305.13245). Gradients are
deterministic: atomic additions are of integers only. ``flash`` serves every GPU, dtype, mask and window. ``hopper`` and
``hopper_backward`` serve large problems on Hopper, in 16 bits with more than 32 columns a head, and ``hopper_few`` few heads of up to 128.
``decode`` serves few queries over many keys, without a gradient. They are imported where they are called.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.tools.tensor_descriptor import TensorDescriptor

from tilescope_kernels._shared import checks
from tilescope_kernels._shared.launching import capability, cdiv, gluon_capability, launch
from tilescope_kernels._shared.operators import neighbours, operator, pack, rows_like, wants_grad
from tilescope_kernels._shared.plans import Form, Write, planned
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels.attention import attention_configs as configs
from tilescope_kernels.attention.attention_configs import checked_scale, lse_shape, padded, scale_of_scores
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, KernelSpec, Workload, declare, drawn

#: Most columns of a head: their accumulator must fit in registers beside the scores.
_MOST = 256
#: The least normal fp32: kernels may take a smaller scale for 0.
_LEAST_SCALE = 2.0**-126


def _tma_serves(*tensors: torch.Tensor) -> bool:
    """Whether TMA can load the tensors: Hopper or later, 16-bit elements, 16-byte aligned rows, no stride of 0."""
    first = tensors[0]
    if first.element_size() != 2 or (first.is_cuda and capability(first) < 90):
        return False
    for tensor in tensors:
        of_batch, of_head, of_row, _ = tensor.stride()
        is_askew = tensor.data_ptr() % 16 or (of_batch | of_head | of_row) % 8
        if is_askew or tensor.numel() == 0 or min(of_batch, of_head, of_row) == 0:
            return False
    return True


def _specializes(*tensors: torch.Tensor) -> bool:
    """Whether the kernels for Hopper accept these operands."""
    return 32 < tensors[0].shape[3] <= _MOST and gluon_capability(tensors[0]) == 90 and _tma_serves(*tensors)


def _tiles(tensor: torch.Tensor, rows: int, tma: int) -> Form | None:
    """Form of TMA descriptors of tensors (batch, heads, rows, columns) with ``rows`` rows a tile. None unless ``tma``."""
    block = [1, 1, rows, padded(tensor.shape[3])]
    return Form(TensorDescriptor, list(tensor.shape), list(tensor.stride()), block) if tma else None


@operator(
    "attention",
    autocast="lower",
    fake=lambda q, k, v, causal, scale, save, config, mask=None, window=None: (
        rows_like(q),
        q.new_empty(lse_shape(q, mask) if save else 0, dtype=torch.float32),
    ),
)
def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, save: bool, config: str,
    mask: torch.Tensor | None = None, window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The output, and each row's log-sum-exp in base 2 (batch, heads, queries) in fp32, or an empty tensor unless ``save``.

    Beside a mask of numbers the log-sum-exp is in two parts, as ``flash`` says. ``mask`` has the shape of the scores (batch,
    heads, queries, keys) and any strides.
    """
    o = rows_like(q)
    lse = q.new_empty(lse_shape(q, mask) if save else 0, dtype=torch.float32)
    if o.numel() == 0 or k.shape[2] == 0:
        # The output of a query that sees no key is 0.
        return o.zero_(), lse.zero_()
    given = causal, scale, save, config, window
    plan = functools.partial(_writer, o, q, k, v, mask, *given)
    write: Write = planned(_PLANS, plan, (q, k, v), *given) if mask is None else plan()
    write(o, lse if save else None, q, k, v)
    return o, lse


#: What writes the output: planning that takes longer than many launches.
_PLANS: dict[Hashable, Write] = {}


def _writer(
    o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float,
    save: bool, config: str, window: int | None,
) -> Write:  # fmt: skip
    """What writes the attention of tensors like these, with this mask."""
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    plain = mask is None and window is None
    score_scale = scale_of_scores(scale, mask)
    if not config and plain and configs.decode_serves(queries, keys, causal, save):
        from tilescope_kernels.attention.decode import decode  # noqa: PLC0415

        return lambda o, _, q, k, v: decode(o, q, k, v, score_scale)
    # The kernels for Hopper scale hidden scores too: -inf * 0 would be NaN.
    specializes = plain and score_scale >= _LEAST_SCALE and _specializes(o, q, k, v)
    chosen = configs.chosen_config(q, causal, config, mask is not None, specializes)
    m, n, tma = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["TMA"] and (specializes or _tma_serves(q, k, v))
    for name, served in (("TMA", tma), ("SPECIALIZED", specializes)):
        if config and chosen[name] > served:
            raise ValueError(
                f"config has {name}=1, which these operands or this GPU do not allow: use one with {name}=0"
            )
    known = o, q, k, v, causal, score_scale, chosen
    if chosen["SPECIALIZED"] and m == configs.SHARED_QUERIES:
        from tilescope_kernels.attention import hopper_few  # noqa: PLC0415

        return hopper_few.writer(*known)
    if chosen["SPECIALIZED"]:
        from tilescope_kernels.attention import hopper  # noqa: PLC0415

        return hopper.writer(*known)
    from tilescope_kernels.attention import flash  # noqa: PLC0415

    q_tiles, k_tiles, v_tiles = _tiles(q, m, tma), _tiles(k, n, tma), _tiles(v, n, tma)
    grid, strides = (cdiv(queries, m) * batch * heads,), [t.stride()[:3] for t in (o, q, k, v)]
    numbers = *strides, heads, queries, keys, score_scale, mask, None if mask is None else mask.stride(), window
    constants = {
        "EVEN": keys % n == 0, "BLOCK_M": m, "BLOCK_N": n, "GROUP": heads // kv_heads, "COLUMNS": columns, "CAUSAL": causal,
        "num_warps": chosen["num_warps"], "num_stages": chosen["num_stages"], "FAR": is_far(*(t.stride(2) for t in (o, q, k, v))),
    }  # fmt: skip

    def write(o: torch.Tensor, lse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        loaded = q_tiles and q_tiles.of(q), k_tiles and k_tiles.of(k), v_tiles and v_tiles.of(v)
        launch(flash.attention_kernel, grid, o, lse, q, k, v, *loaded, *numbers, **constants)

    return write


@operator("attention_backward", fake=lambda _, *qkv: tuple(map(rows_like, qkv[:3])))
def _attention_backward(
    do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor,
    causal: bool, scale: float, config: str, mask: torch.Tensor | None = None, window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """dQ, dK and dV, like ``q``, ``k`` and ``v``."""
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    dq, dk, dv = (rows_like(t) for t in (q, k, v))
    plain = mask is None and window is None and not config
    if q.numel() == 0 or keys == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    group, score_scale = heads // kv_heads, scale_of_scores(scale, mask)
    given = (dq, dk, dv, do, q, k, v, o, lse, causal, scale, score_scale)
    if plain and configs.specializes_backward(q, k, causal) and _specializes(do, q, k, v, o, dq, dk, dv):
        from tilescope_kernels.attention.hopper_gradients import in_one_pass, in_two_passes  # noqa: PLC0415

        (in_one_pass if padded(columns) <= 128 else in_two_passes)(*given)
        return dq, dk, dv
    chosen = configs.chosen_config(q, causal, config, mask is not None)
    if not config and configs.few(q, k, chosen):
        from tilescope_kernels.attention.flash_split import backward_of_few  # noqa: PLC0415

        backward_of_few(*given, mask, window, chosen)
        return dq, dk, dv
    from tilescope_kernels.attention import flash  # noqa: PLC0415

    tma = chosen["TMA"] and _tma_serves(do, q, k, v)
    delta = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    far = is_far(*(t.stride(2) for t in (dq, dk, dv, do, q, k, v, o)))
    shared = {"GROUP": group, "COLUMNS": columns, "CAUSAL": causal, "FAR": far}
    hidden = (mask, None if mask is None else mask.stride(), window)
    launch(
        flash.attention_delta_kernel, (cdiv(queries, 64) * batch * heads,),
        delta, o, do, o.stride()[:3], do.stride()[:3], heads, queries,
        COLUMNS=columns, BLOCK=64, FAR=far, num_warps=4,
    )  # fmt: skip
    (kv_m, kv_n), (q_m, q_n) = ((chosen[f"{loop}_M"], chosen[f"{loop}_N"]) for loop in ("KV", "Q"))
    kv_programs, q_programs = cdiv(keys, kv_n) * batch * kv_heads, cdiv(queries, q_m) * batch * heads
    kv_options, q_options = (
        {"num_warps": chosen[f"{loop}_WARPS"], "num_stages": chosen[f"{loop}_STAGES"]} for loop in ("KV", "Q")
    )
    do_tiles, q_tiles, k_tiles, v_tiles = (
        (form := _tiles(t, rows, tma)) and form.of(t) for t, rows in ((do, kv_m), (q, kv_m), (k, q_n), (v, q_n))
    )
    dq_strides, dk_strides, dv_strides, *strides = (t.stride()[:3] for t in (dq, dk, dv, do, q, k, v))
    launch(
        flash.attention_backward_kv_kernel, (kv_programs,),
        dk, dv, do, q, k, v, lse, delta, do_tiles, q_tiles, dk_strides, dv_strides, *strides,
        kv_heads, queries, keys, scale, score_scale, *hidden,
        EVEN=queries % kv_m == 0, BLOCK_M=kv_m, BLOCK_N=kv_n, **shared, **kv_options,
    )  # fmt: skip
    launch(
        flash.attention_backward_q_kernel, (q_programs,),
        dq, do, q, k, v, lse, delta, k_tiles, v_tiles, dq_strides, *strides,
        heads, queries, keys, scale, score_scale, *hidden,
        EVEN=keys % q_n == 0, BLOCK_M=q_m, BLOCK_N=q_n, **shared, **q_options,
    )  # fmt: skip
    return dq, dk, dv


@_attention.gradient(lambda q, k, v, causal, scale, save, config, mask, window, o, lse: (q, k, v, o, lse, mask))
def _differentiate(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor, ...]:
    *saved, mask = ctx.saved_tensors
    causal, scale, _, config, window = ctx.rest
    return _attention_backward(neighbours(do), *saved, causal, scale, config, mask, window)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> None:
    checks.check_tensors(query=query, key=key, value=value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions: give (batch, heads, rows, columns)")
    batch, heads, _, columns = query.shape
    if not 1 <= columns <= _MOST:
        raise ValueError(f"query has {columns} columns a head: give 1 to {_MOST}")
    if key.shape[0] != batch or key.shape[3] != columns:
        raise ValueError(f"key has shape {tuple(key.shape)}: give ({batch}, heads, rows, {columns}) beside this query")
    checks.check_alike(key=key, value=value)
    if enable_gqa and (key.shape[1] == 0 or heads % key.shape[1]):
        raise ValueError(f"key has {key.shape[1]} heads: with enable_gqa give a divisor of query's {heads}")
    if not enable_gqa and key.shape[1] != heads:
        raise ValueError(f"key has {key.shape[1]} heads but query has {heads}: give as many, or enable_gqa=True")


def _check_mask(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Expand the mask to the shape of the scores, without a copy. Raises ValueError for one that is not supported."""
    if is_causal:
        raise ValueError("attn_mask is given beside is_causal: give one of them, as PyTorch asks for")
    if mask.dtype not in (torch.bool, *checks.FLOATING):
        raise ValueError(f"attn_mask is {mask.dtype}: give torch.bool, or a floating dtype of up to 32 bits")
    checks.check_together(query=query, attn_mask=mask)
    checks.check_no_grad("scaled_dot_product_attention", attn_mask=mask)
    shape = (*query.shape[:3], key.shape[2])
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise ValueError(f"attn_mask has shape {tuple(mask.shape)}: give one that broadcasts to {shape}") from None


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
    window: int | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``softmax(query @ key.mT * scale) @ value`` of tensors (batch, heads, rows, columns); once differentiable.

    Takes the arguments of ``torch.nn.functional.scaled_dot_product_attention``; ``dropout_p`` must be 0. ``is_causal``
    lets row i of ``query`` see rows 0 to i of ``key``, and ``window`` only the last ``window`` of those. ``attn_mask``
    broadcasts to (batch, heads, queries, keys) and has no gradient: booleans, true where a key is seen, or numbers that
    are added to the scores. A query that sees no key gets zeros. ``scale`` is 1 / sqrt(columns) by default, and at
    least 0. With ``enable_gqa`` each head of ``key`` and ``value`` serves several consecutive heads of ``query``.

    Dtypes are fp32, fp16 and bf16, with 1 to 256 columns and any strides; a last stride other than 1 costs a copy.
    Tiles are padded on chip to a power of two of at least 16 columns. Softmax and sums are fp32. Gradients are
    deterministic. Tiles of keys outside the window are skipped; those that ``attn_mask`` hides are not. ``config`` is one
    of ``CONFIGS``. Raises ValueError, naming the argument, for what is not supported.
    """
    if not checks.use_triton():
        if window is not None:
            rows, keys = (torch.arange(t.shape[2], device=t.device) for t in (query, key))
            apart = rows[:, None] - keys
            attn_mask, is_causal = (apart >= 0) & (apart < window), False
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if dropout_p:
        raise ValueError(f"dropout_p is {dropout_p}: this function serves 0")
    _check(query, key, value, enable_gqa)
    scale = checked_scale(scale, query)
    if window is not None and (not is_causal or window < 1):
        raise ValueError(f"window is {window} and is_causal is {is_causal}: give at least 1, with is_causal=True")
    if window is not None:
        # More than all queries have is all: ends of windows are 32-bit.
        window = min(window, query.shape[2])
    mask = None if attn_mask is None else _check_mask(query, key, attn_mask, is_causal)
    save = wants_grad(query, key, value)
    q, k, v = (neighbours(tensor) for tensor in (query, key, value))
    return _attention(q, k, v, is_causal, scale, save, pack(config), mask, window)[0]


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, enable_gqa: bool
) -> torch.Tensor:
    """Attention in plain PyTorch, one operation at a time."""
    if enable_gqa:
        group = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[3])
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ value


def _sdpa(backend: SDPBackend) -> Any:
    """PyTorch's function with one of its backends."""

    def call(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, enable_gqa: bool
    ) -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=enable_gqa)

    return call


def _inputs(is_causal: bool) -> Callable[[Workload, Any], dict[str, Any]]:
    """``query`` (batch, kv_heads * group, queries, columns), ``key`` and ``value`` (batch, kv_heads, keys, columns), normal."""

    def inputs(
        draw: Draw, batch: int, kv_heads: int, group: int, queries: int, keys: int, columns: int
    ) -> dict[str, Any]:
        query = draw(batch, kv_heads * group, queries, columns, grad=True)
        key, value = (draw(batch, kv_heads, keys, columns, grad=True) for _ in range(2))
        return {"query": query, "key": key, "value": value, "is_causal": is_causal, "enable_gqa": group > 1}

    return drawn(inputs)


def _cost(is_causal: bool) -> Callable[[Workload, str], Cost]:
    """Operations of the products and bytes of the tensors, each moved once.

    Forward has two products: 4 operations per query-key pair and column. Backward has five: 10. Not counted are the
    softmax, as is usual, two products that a backward pass without atomics computes twice, and the log-sum-exp and
    delta, 4 bytes a row each. A causal mask leaves about half of the pairs.
    """

    def cost(workload: Workload, direction: str) -> Cost:
        batch, kv_heads, group, queries, keys, columns = workload.dims.values()
        seen = min(queries, keys)
        pairs = seen * (seen + 1) // 2 + (queries - seen) * keys if is_causal else queries * keys
        work = batch * kv_heads * group * pairs * columns
        q_size = batch * kv_heads * group * queries * columns * workload.itemsize
        kv_size = 2 * batch * kv_heads * keys * columns * workload.itemsize
        if direction == FORWARD:
            return Cost(4 * work, q_size + kv_size, q_size, workload.pipe)
        # Reads q, o, do, k and v; writes dq, dk and dv.
        return Cost(10 * work, 3 * q_size + kv_size, q_size + kv_size, workload.pipe)

    return cost


def _spec(name: str, summary: str, ragged: str, is_causal: bool) -> KernelSpec:
    """``group`` query heads share each head of keys and values."""
    return declare(
        name, summary, "batch kv_heads group queries keys columns",
        f"small 1x2x1x128x128x64-bf16, medium 2x8x2x1024x1024x64-bf16, large 4x32x1x4096x4096x128-bf16, ragged {ragged}-fp16, "
        "grouped 4x8x4x4096x4096x128-bf16, long 1x8x1x16384x16384x128-bf16, empty 0x8x1x1024x1024x128-bf16",
        triton=Implementation(scaled_dot_product_attention, "one pass over keys and values", configs.CONFIGS),
        eager=Implementation(reference, "one operation at a time: scores in memory"),
        fa2=Implementation(_sdpa(SDPBackend.FLASH_ATTENTION), "PyTorch's SDPA, FlashAttention-2 backend"),
        cudnn=Implementation(_sdpa(SDPBackend.CUDNN_ATTENTION), "PyTorch's SDPA, cuDNN backend"),
        reference=reference, inputs=_inputs(is_causal), cost=_cost(is_causal),
        tolerance={"fp32": 1e-5, "fp16": 1.1e-3, "bf16": 9e-3}, passes="forward backward",
    )  # fmt: skip


SPEC = _spec("attention", "softmax(q @ k.T * scale) @ v", "1x3x2x517x769x64", False)
CAUSAL_SPEC = _spec("causal_attention", "attention to the keys up to the query's own", "1x3x2x781x781x64", True)
