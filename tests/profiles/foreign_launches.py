"""Kernels and launchers as people write them, for tests of what captures them: nothing here is declared to Tilescope."""

import importlib.util

import torch
import triton
import triton.language as tl

FACTOR = tl.constexpr(3)
#: Used as a default alone.
ADDED = 2
#: A default reads one number of this object, which cannot be recorded.
RANGE = torch.finfo(torch.float16)


def loaded_by_its_path(name):
    """A function of the device's library, as libraries find it that work with several versions of Triton."""
    found = importlib.util.find_spec("triton.language.extra.libdevice")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, name)


rsqrt = loaded_by_its_path("rsqrt")


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.autotune([triton.Config({"ROWS": 128}, num_warps=8), triton.Config({"ROWS": 16}, num_warps=2)], key=["columns"])
@triton.heuristics({"EVEN": lambda given: given["columns"] % 256 == 0})
@triton.jit
def turned_kernel(x_ptr, out_ptr, columns, ROWS: tl.constexpr, EVEN: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    across = tl.arange(0, 256)
    tl.static_assert(EVEN)
    tile = scaled(tl.load(x_ptr + rows[:, None] * columns + across[None, :]))
    # Turned in shared memory: of 128 rows that is more than some GPUs have for a block.
    tl.store(out_ptr + across[:, None] * tl.num_programs(0) * ROWS + rows[None, :], tl.trans(tile))


@triton.autotune([triton.Config({"BLOCK": 128 << n}, num_warps=4) for n in range(4)], key=["n"])
@triton.jit
def tripled_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, scaled(tl.load(x_ptr + offsets, mask=offsets < n)), mask=offsets < n)


def turned(x):
    out = x.new_empty(x.shape[1], x.shape[0])
    turned_kernel[lambda given: (x.shape[0] // given["ROWS"],)](x, out, x.shape[1])
    return out


@triton.jit
def gather_kernel(table_ptr, where_ptr, out_ptr, columns: tl.constexpr):
    offsets = tl.arange(0, columns)
    row = tl.load(where_ptr + tl.program_id(0))
    tl.store(out_ptr + tl.program_id(0) * columns + offsets, tl.load(table_ptr + row * columns + offsets))


def gather(table, where):
    out = table.new_empty(len(where), table.shape[1])
    gather_kernel[(len(where),)](table, where, out, table.shape[1])
    return out


@triton.jit
def by_float_kernel(where_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(where_ptr + offsets).to(tl.int32)
    tl.store(out_ptr + offsets, tl.load(x_ptr + place))


@triton.jit
def odd_arguments_kernel(  # noqa: PLR0917
    pair, nothing, name: tl.constexpr, kind: tl.constexpr, function: tl.constexpr, out_ptr
):
    if nothing is None and name == "add":
        value = tl.load(pair[0] + pair[1]).to(kind)
        tl.store(out_ptr, function(value))


def odd_arguments(x):
    out = torch.zeros(1)
    odd_arguments_kernel[(1,)]((x, 2), None, "add", tl.float32, scaled, out)
    return out


@triton.jit
def two_views_kernel(a_ptr, b_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(a_ptr + offsets, tl.load(b_ptr + offsets))


def multiplier(by):
    """A launcher whose kernel is a closure."""
    times = tl.constexpr(by)

    @triton.jit
    def closed_kernel(x_ptr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) * times)

    def launch(x):
        closed_kernel[(1,)](x, x.numel())

    return launch


class Doubled(torch.autograd.Function):
    """Launches in its backward pass too."""

    @staticmethod
    def forward(ctx, x):
        out = x.detach().clone()
        multiplier(2)(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        multiplier(2)(gradient)
        return gradient


class Both(torch.autograd.Function):
    """Launches on the gradients of both outputs, also on the zeros for one that nobody uses."""

    @staticmethod
    def forward(ctx, x):
        return x.clone(), x.clone()

    @staticmethod
    def backward(ctx, first, second):
        out = torch.empty_like(first, memory_format=torch.contiguous_format)
        two_views_kernel[(1,)](out, second, 16)
        return out + first


@torch.library.custom_op("foreign_launches::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    multiplier(3)(out)
    return out


@triton.jit
def grouped_kernel(addresses_ptr, sizes_ptr, BLOCK: tl.constexpr):
    x_ptr = tl.load(addresses_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    offsets = tl.arange(0, BLOCK)
    keep = offsets < tl.load(sizes_ptr + tl.program_id(0))
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=keep) + 1, mask=keep)


@triton.jit
def described_kernel(x, out, ROWS: tl.constexpr):
    first = tl.program_id(0) * ROWS
    out.store([first, 0], x.load([first, 0]) * 2)


@triton.jit
def counting_kernel(counter_ptr, out_ptr, by: tl.constexpr = ADDED):
    ticket = tl.atomic_add(counter_ptr, by // 2)
    tl.store(out_ptr + ticket, ticket)


@triton.jit
def of_amd_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Rounds with the device library of another vendor's GPUs."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.extra.hip.libdevice.llrint(tl.load(x_ptr + at)))


@triton.jit
def misspelt_kernel(out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = at * 2  # noqa: F841
    tl.store(out_ptr + at, valeu)  # noqa: F821


@triton.jit
def one_axis_kernel(out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.sum(at, axis=1)
    tl.store(out_ptr + at, value)


@triton.jit
def bounded_kernel(x_ptr, BLOCK: tl.constexpr, LARGEST: tl.constexpr = RANGE.max):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.minimum(rsqrt(tl.load(x_ptr + at)), LARGEST))


class Backwards:
    """A view that PyTorch has none of: it begins at a tensor's last element. Triton asks for an address and a dtype alone."""

    def __init__(self, base):
        self.base_of, self.dtype, self.shape = base, base.dtype, base.shape

    def stride(self):
        return (-1,)

    def data_ptr(self):
        return self.base_of.data_ptr() + (self.base_of.numel() - 1) * self.base_of.itemsize


@triton.jit
def flip_kernel(x_ptr, out_ptr, step, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place: tl.constexpr = 0
    tl.store(out_ptr + at + place, tl.load(x_ptr + at * step))


@triton.jit
def doubled_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) * 2)


def tuned_by_itself(kind):
    """An autotuner as libraries have one: of a class of its own beneath one of Triton's, which times configs itself."""

    class Patient(kind):
        def __init__(self, fn, arg_names, configs):
            self.fn, self.arg_names, self.configs = fn, arg_names, configs
            self.early_config_prune = None

        def run(self, *args, **kwargs):
            times = [triton.testing.do_bench(lambda: None, quantiles=(0.5,)) for _ in self.configs]
            best = self.configs[times.index(min(times))]
            return self.fn.run(*args, **kwargs, **best.all_kwargs())

    configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]
    return Patient(doubled_kernel, doubled_kernel.arg_names, configs)
