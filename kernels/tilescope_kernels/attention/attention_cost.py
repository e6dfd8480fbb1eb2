"""Least work of attention: operations of its products and bytes of its tensors."""

from __future__ import annotations

from tilescope_kernels.spec import FORWARD, Cost, Workload

#: The dimensions of a workload. ``group`` query heads share each head of keys and values.
DIMS = ("batch", "kv_heads", "group", "queries", "keys", "columns")


def _cost(workload: Workload, direction: str, pairs: int) -> Cost:
    """Cost of ``pairs`` query-key pairs in each head."""
    batch, kv_heads, group, queries, keys, columns = workload.dims.values()
    heads = batch * kv_heads * group
    q_size = heads * queries * columns * workload.itemsize
    kv_size = 2 * batch * kv_heads * keys * columns * workload.itemsize
    pipe = workload.dtype if workload.dtype in ("bf16", "fp16") else "fp32"
    if direction == FORWARD:
        return Cost(4 * heads * pairs * columns, bytes_read=q_size + kv_size, bytes_written=q_size, pipe=pipe)
    # Reads q, o, do, k and v; writes dq, dk and dv.
    return Cost(
        10 * heads * pairs * columns, bytes_read=3 * q_size + kv_size, bytes_written=q_size + kv_size, pipe=pipe
    )


def cost(workload: Workload, direction: str) -> Cost:
    """Operations of the products and bytes of the tensors, each moved once.

    Forward has two products: 4 operations per query-key pair and column. Backward has five: 10. Not counted are the
    softmax, as is usual, two products that a backward pass without atomics computes twice, and the log-sum-exp and
    delta, 4 bytes a row each.
    """
    return _cost(workload, direction, workload.dims["queries"] * workload.dims["keys"])


def causal_cost(workload: Workload, direction: str) -> Cost:
    """As ``cost``, for the pairs that a causal mask leaves: about half of them."""
    queries, keys = workload.dims["queries"], workload.dims["keys"]
    seen = min(queries, keys)
    return _cost(workload, direction, seen * (seen + 1) // 2 + (queries - seen) * keys)
