"""Chunk states of a state-space model (Mamba-2, SSD): one of the kernels that ``benchmarks/tuning.py`` searches as a foreign one.

For each chunk of a sequence:   S[p, n] = sum_t  x[t, p] * dt[t] * exp(A_last - A_t) * B[t, n]

where A is the running sum of dt * a inside the chunk. Everything is one matmul per (batch, chunk, head) with a decay on the
left operand, so the tile sizes matter as they do for a GEMM.
"""

import torch
import triton
import triton.language as tl

CONFIGS = [
    {"BLOCK_P": p, "BLOCK_N": n, "BLOCK_T": t, "num_warps": w, "num_stages": s}
    for p in (32, 64)
    for n in (32, 64, 128)
    for t in (32, 64)
    for w in (2, 4)
    for s in (2, 4)
    if p * n <= 64 * 128
][:32]


@triton.jit
def chunk_states_kernel(
    x_ptr, b_ptr, dt_ptr, cum_ptr, s_ptr,
    T, H, P, N, CHUNK,
    sx_b, sx_t, sx_h,
    sb_b, sb_t,
    sd_b, sd_t, sd_h,
    ss_b, ss_c, ss_h, ss_p,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    chunk = tl.program_id(1)
    bh = tl.program_id(2)
    b, h = bh // H, bh % H

    rp = (pid // tiles_n) * BLOCK_P + tl.arange(0, BLOCK_P)
    rn = (pid % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    rt = tl.arange(0, BLOCK_T)
    t0 = chunk * CHUNK

    last = tl.load(cum_ptr + b * sd_b + (t0 + CHUNK - 1) * sd_t + h * sd_h)
    acc = tl.zeros((BLOCK_P, BLOCK_N), dtype=tl.float32)
    for t in range(0, CHUNK, BLOCK_T):
        steps = t0 + t + rt
        ok = steps < T
        x = tl.load(
            x_ptr + b * sx_b + steps[None, :] * sx_t + h * sx_h + rp[:, None],
            mask=ok[None, :] & (rp[:, None] < P),
            other=0.0,
        )
        bb = tl.load(
            b_ptr + b * sb_b + steps[:, None] * sb_t + rn[None, :], mask=ok[:, None] & (rn[None, :] < N), other=0.0
        )
        dt = tl.load(dt_ptr + b * sd_b + steps * sd_t + h * sd_h, mask=ok, other=0.0)
        cum = tl.load(cum_ptr + b * sd_b + steps * sd_t + h * sd_h, mask=ok, other=0.0)
        decay = tl.exp(last - cum) * dt
        acc += tl.dot((x * decay[None, :]).to(bb.dtype), bb)

    out = s_ptr + b * ss_b + chunk * ss_c + h * ss_h + rp[:, None] * ss_p + rn[None, :]
    tl.store(out, acc, mask=(rp[:, None] < P) & (rn[None, :] < N))


def arguments(batch, steps, heads, channels, state, chunk, device):
    """Random inputs and an output, as the kernel takes them."""
    g = torch.Generator(device).manual_seed(0)
    x = torch.randn(batch, steps, heads, channels, device=device, generator=g).bfloat16()
    b = torch.randn(batch, steps, state, device=device, generator=g).bfloat16()
    dt = torch.rand(batch, steps, heads, device=device, generator=g) * 0.1
    cum = (-dt).view(batch, steps // chunk, chunk, heads).cumsum(2).view(batch, steps, heads)
    s = torch.empty(batch, steps // chunk, heads, channels, state, device=device)
    return dict(
        x_ptr=x, b_ptr=b, dt_ptr=dt, cum_ptr=cum, s_ptr=s, T=steps, H=heads, P=channels, N=state, CHUNK=chunk,
        sx_b=x.stride(0), sx_t=x.stride(1), sx_h=x.stride(2), sb_b=b.stride(0), sb_t=b.stride(1),
        sd_b=dt.stride(0), sd_t=dt.stride(1), sd_h=dt.stride(2),
        ss_b=s.stride(0), ss_c=s.stride(1), ss_h=s.stride(2), ss_p=s.stride(3),
    )  # fmt: skip


def reference(x_ptr, b_ptr, dt_ptr, cum_ptr, CHUNK, **_):
    """The same in PyTorch, fp32."""
    B, T, H, P = x_ptr.shape
    split = lambda t: t.float().view(B, T // CHUNK, CHUNK, *t.shape[2:])  # noqa: E731
    x, b, dt, cum = map(split, (x_ptr, b_ptr, dt_ptr, cum_ptr))
    decay = (cum[:, :, -1:] - cum).exp() * dt
    return torch.einsum("bcthp,bcth,bctn->bchpn", x, decay, b)


def grid_of(batch, steps, heads, channels, state, chunk):
    return lambda meta: (
        triton.cdiv(channels, meta["BLOCK_P"]) * triton.cdiv(state, meta["BLOCK_N"]),
        steps // chunk,
        batch * heads,
    )
