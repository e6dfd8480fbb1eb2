"""Attention to keys and values in pages, in Triton's interpreter."""

from unittest import mock

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, SPECS, against_reference, close, draw, poisoned, told_apart
from tilescope_kernels import paged_attention
from tilescope_kernels.attention import paged as MODULE


class Cache:
    """Keys and values of sequences, and the same in pages in random order, of which NaN is what no sequence has."""

    def __init__(self, lengths, page, kv_heads, columns, dtype=torch.float32):
        widths = [-(-length // page) for length in lengths]
        self.kept = [
            [draw(n, kv_heads, columns, seed=7 * i + j).to(dtype) for j in (1, 2)] for i, n in enumerate(lengths)
        ]
        self.pages = [torch.full((sum(widths) + 2, page, kv_heads, columns), NAN, dtype=dtype) for _ in range(2)]
        order = iter(torch.randperm(sum(widths) + 2, generator=torch.Generator().manual_seed(3)).tolist())
        self.table = torch.full((len(lengths), max(widths, default=0) + 1), -(2**30), dtype=torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        for i, (length, width) in enumerate(zip(lengths, widths, strict=True)):
            for place in range(width):
                self.table[i, place] = number = next(order)
                part = slice(place * page, min(length, place * page + page))
                for pages, kept in zip(self.pages, self.kept[i], strict=True):
                    pages[number, : part.stop - part.start] = kept[part]

    def wanted(self, q, is_causal=False, scale=None):
        """PyTorch's function in fp64, of one sequence after another."""
        results = []
        for one, kept in zip(q.double(), self.kept, strict=True):
            k, v = (t.double().repeat_interleave(q.shape[1] // t.shape[1], 1).transpose(0, 1)[None] for t in kept)
            rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
            seen = keys <= rows + k.shape[2] - q.shape[2] if is_causal else None
            results.append(F.scaled_dot_product_attention(one[None], k, v, seen, scale=scale)[0])
        return torch.stack(results)

    def check(self, q, tolerance=1e-5, **options):
        with poisoned():
            actual = paged_attention(q, *self.pages, self.table, self.lengths, **options)
        options.pop("config", None)
        close(actual, self.wanted(q, **options), tolerance)
        return actual


def check_lengths_and_sizes_of_pages():
    for page in (1, 13, 16, 64, 256):
        cache = Cache((100, 0, 65, 1, 2), page, 2, 16)
        cache.check(draw(5, 4, 1, 16))
        cache.check(draw(5, 4, 3, 16), is_causal=True)  # some of which see no key


def check_columns_groups_and_dtypes():
    for columns in (1, 24, 96, 256):
        Cache((70, 33), 16, 1, columns).check(draw(2, 3, 2, columns))
    for columns, group in ((64, 1), (128, 8)):
        q = draw(2, 2 * group, 1, columns).half()
        Cache((70, 133), 16, 2, columns, torch.float16).check(q, 1e-3)
    # 80 rows of a group, in two tiles, of which one is not full.
    Cache((70, 133), 32, 1, 16).check(draw(2, 5, 16, 16), is_causal=True)


def check_every_number_of_spans():
    q = draw(3, 4, 2, 16)
    cache = Cache((300, 31, 129), 16, 2, 16)
    for slots in (1, 5, 30, 264):
        with mock.patch.object(MODULE, "multiprocessors", lambda _, slots=slots: slots):
            cache.check(q)
            cache.check(q, is_causal=True)
    for config in told_apart(SPECS["paged_attention"].implementations["triton"].configs):
        cache.check(q, config=config)


def check_strides_and_scale():
    cache = Cache((60, 75), 16, 2, 16)
    # One tensor of both, heads before keys, and a table and lengths that are parts of others.
    both = torch.stack([pages.transpose(1, 2) for pages in cache.pages], 1)
    cache.pages = [both[:, i].transpose(1, 2) for i in range(2)]
    cache.table = torch.cat((cache.table, cache.table), 1)[:, : cache.table.shape[1]]
    q = draw(2, 1, 3, 4, 16)[:, :, 1].transpose(1, 2)
    for scale in (None, 0.7, 0.0):
        cache.check(q, scale=scale)
    cache.pages = [pages.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0) for pages in cache.pages]
    cache.table, cache.lengths = cache.table.T.contiguous().T, cache.lengths.repeat_interleave(2)[::2]
    cache.check(q)


def check_special_values():
    cache = Cache((90, 150), 16, 1, 16)
    q = draw(2, 1, 9, 16)
    # In one sequence: the other knows nothing of it.
    q[0, 0, 0, 0], q[0, 0, 1, 0], cache.pages[1][cache.table[0, 2], 3, 0, 3] = NAN, INF, NAN
    actual = paged_attention(q, *cache.pages, cache.table, cache.lengths)
    cache.kept[0][1][35, 0, 3] = NAN
    close(actual, cache.wanted(q).float(), 1e-5)
    # Scores that differ by more than fp32 can raise 2 to, in spans of their own.
    cache = Cache((2000,), 64, 1, 16)
    cache.pages[0].zero_()[cache.table[0, 10], ..., 0] = 1e4
    actual = paged_attention(draw(1, 1, 1, 16).abs(), *cache.pages, cache.table, cache.lengths)
    close(actual[0, 0], cache.kept[0][1][640:704].mean(0), 1e-5)


def check_empty():
    cache = Cache((40, 20), 16, 2, 16)
    q = draw(2, 2, 1, 16)
    assert paged_attention(q[:, :, :0], *cache.pages, cache.table, cache.lengths).shape == (2, 2, 0, 16)
    assert paged_attention(q[:0], *cache.pages, cache.table[:0], cache.lengths[:0]).shape == (0, 2, 1, 16)
    assert not paged_attention(q, *cache.pages, cache.table[:, :0], 0 * cache.lengths).any()
    assert not paged_attention(q, *(t[:0] for t in cache.pages), cache.table, 0 * cache.lengths).any()


def check_spec():
    for extents in ("3x2x2x1x70x16x16", "2x1x3x2x100x24x64", "0x2x2x1x40x16x16"):
        against_reference("paged_attention", f"{extents}-fp32")
