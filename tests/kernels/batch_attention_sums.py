"""What goes before and after attention's backward pass on Hopper, in Triton's interpreter."""

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, close, draw
from tilescope_kernels._shared.launching import next_power_of_2
from tilescope_kernels.attention import hopper_backward_sums as sums_of
from tilescope_kernels.attention.hopper import lines

EXTENTS = (
    (1, 4, 2, 150, 200, 128),
    (2, 2, 2, 70, 130, 64),
    (1, 2, 1, 64, 64, 80),
    (1, 2, 2, 70, 64, 72),
    (1, 2, 1, 130, 70, 96),
)


class Problem:
    """Operands of a backward pass, and what is worked out of them before it."""

    def __init__(self, *extents):
        batch, heads, kv_heads, queries, keys, columns = extents
        #: Columns of each part of the sums.
        self.widths = [64] if columns <= 64 else [64, 64]
        self.width = sum(self.widths)
        self.columns, self.queries, self.group = columns, queries, heads // kv_heads
        block = 128 if columns <= 64 else 64
        self.rows, self.parts = -(-queries // block) * block, -(-keys // 64)
        self.programs = self.rows // 64 * batch * heads
        self.o, self.do = (draw(batch, heads, queries, columns, seed=seed).half() for seed in (0, 1))
        self.k, self.v = (draw(batch, kv_heads, keys, columns, seed=seed).half() for seed in (2, 3))
        self.lse = draw(batch, heads, queries, seed=4)
        self.terms = torch.full((batch, heads, 3, self.rows), NAN)
        self.bounds = torch.full((batch, kv_heads, 2, self.parts), NAN)
        self.sums = torch.full((batch * heads, self.rows // 64, 64 * self.width), 7, dtype=torch.int32)

    def begin(self):
        tensors = (self.o, self.do, self.k, self.v)
        (batch, heads), (kv_heads, keys) = self.o.shape[:2], self.k.shape[1:3]
        sums_of.attention_backward_terms_kernel[(self.programs + self.parts * batch * kv_heads,)](
            self.terms, self.bounds, self.sums, self.o, self.do, self.lse, self.k, self.v, *(t.stride()[:3] for t in tensors),
            heads, kv_heads, self.queries, keys, self.rows, self.parts, self.programs, COLUMNS=self.columns, PADDED=self.width, FAR=False,
        )  # fmt: skip
        return self

    def units(self):
        """Of each row, in fp64."""
        key, value = (self.bounds[:, :, i].amax(-1).repeat_interleave(self.group, 1)[..., None] for i in (0, 1))
        return self.terms[:, :, 2].double() * 2.0**27 / value / key

    def add(self, dq):
        """Add numbers (batch, heads, rows, width) to the sums, as the threads of the warpgroups have them."""
        whole = (dq.double() * self.units()[..., None]).round()
        assert whole.abs().max() < 2**31
        tiles = whole.reshape(*self.sums.shape[:2], 64, self.width).to(torch.int32)
        parts = []
        for part in tiles.split(self.widths, 3):
            place, row, column = torch.arange(64 * part.shape[3]), 0, 0
            for bit, (of_row, of_column) in enumerate(lines(part.shape[3]).offset_bases):
                row = row + (place >> bit & 1) * of_row
                column = column + (place >> bit & 1) * of_column
            parts.append(part[..., row, column])
        self.sums += torch.cat(parts, 2)

    def end(self, scale):
        return self.end_of_all(scale, None)[0]

    def end_of_all(self, scale, shares):
        """dQ, dK and dV."""
        (batch, heads), (kv_heads, keys) = self.o.shape[:2], self.k.shape[1:3]
        gradients = [torch.full_like(t, 9.0) for t in (self.o, self.k, self.v)]
        of_keys = 0 if shares is None else 4 * -(-keys // 128) * batch * kv_heads
        sums_of.attention_backward_sums_kernel[(self.programs + of_keys,)](
            *gradients, self.sums, shares, self.terms, self.bounds, *(t.stride()[:3] for t in gradients),
            heads, kv_heads, self.queries, keys, self.rows, self.parts, self.programs, scale,
            COLUMNS=self.columns, PADDED=self.width, PARTS=next_power_of_2(self.parts),
            SHARES=1 if shares is None else shares.shape[3], FAR=False,
        )  # fmt: skip
        return gradients


def check_terms_and_bounds():
    for extents in EXTENTS:
        one = Problem(*extents).begin()
        queries = one.queries
        assert not one.sums.any()
        assert torch.equal(one.terms[:, :, 0, :queries], one.lse)
        close(one.terms[:, :, 1, :queries], (one.o.double() * one.do.double()).sum(-1))
        close(one.terms[:, :, 2, :queries], 1 / one.do.double().norm(dim=-1))
        # Queries that do not exist weigh nothing.
        assert (one.terms[:, :, 0, queries:] == INF).all() and not one.terms[:, :, 1:, queries:].any()
        k, v = (F.pad(t.double(), (0, 0, 0, -t.shape[2] % 64)).unflatten(2, (-1, 64)) for t in (one.k, one.v))
        close(one.bounds[:, :, 0], k.abs().amax((-1, -2)))
        close(one.bounds[:, :, 1], v.norm(dim=-1).amax(-1))


def check_dq_from_sums():
    for extents in EXTENTS:
        one = Problem(*extents).begin()
        dq = draw(*one.o.shape[:2], one.rows, one.width, seed=5)
        dq[:, :, one.queries :], dq[..., one.columns :] = 0.0, 0.0
        one.add(dq)
        one.add(-0.25 * dq)
        close(one.end(0.5), 0.375 * dq[:, :, : one.queries, : one.columns], 1e-3)


def check_dk_and_dv_from_shares():
    for extents in EXTENTS:
        one = Problem(*extents).begin()
        batch, kv_heads, keys, columns = one.k.shape
        shares = draw(batch, kv_heads, -(-keys // 128), 3, 2, 128, one.width, seed=6)
        shares[..., columns:] = NAN  # not stored
        dq, *others = one.end_of_all(1.0, shares)
        assert not dq.any()
        for i, found in enumerate(others):
            close(found, shares.sum(3)[:, :, :, i].flatten(2, 3)[:, :, :keys, :columns], 1e-3)


def check_what_is_not_finite_reaches_dq():
    for name, value in (("k", INF), ("v", NAN), ("v", -INF)):
        one = Problem(1, 4, 2, 64, 130, 64)
        getattr(one, name)[0, 1, 77, 3] = value
        dq = one.begin().end(1.0)
        assert not dq[:, :2].any() and dq[:, 2:].isnan().all()
    one = Problem(1, 2, 1, 64, 64, 64)
    one.do[0, 1, 9, 2] = NAN
    one.o[0, 0, 7] = NAN  # as of a query that is not finite
    dq = one.begin().end(1.0)
    assert dq[0, 1, 9].isnan().all() and dq[0, 0, 7].isnan().all() and int(dq.isnan().sum()) == 128
