"""What is not served, each for its own reason."""

from functools import partial

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra import cuda, libdevice
from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

from ..interpreting import Launched

N = 32


def _launched(kernel) -> Launched:
    x, out = torch.randn(N), torch.empty(N)
    kernel[(1,)](x, out, N)
    return Launched(out, out, x)


@triton.jit
def assembly_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + at, y)


inline_assembly = partial(_launched, assembly_kernel)


@triton.jit
def gamma_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, libdevice.tgamma(tl.load(x_ptr + at)))


an_unknown_function_of_libdevice = partial(_launched, gamma_kernel)


@triton.jit
def warps_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * cuda.num_warps())


the_number_of_warps = partial(_launched, warps_kernel)


@triton.jit
def both(a, b):
    return a, b


@triton.jit
def packed_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.map_elementwise(both, tl.load(x_ptr + at), pack=2))


several_elements_to_a_call = partial(_launched, packed_kernel)


@gluon.jit
def gluon_kernel(x_ptr, out_ptr, N: gl.constexpr):
    at = gl.arange(0, N, gl.BlockedLayout([1], [32], [4], [0]))
    shared = gl.allocate_shared_memory(gl.float32, [N], gl.SwizzledSharedLayout(1, 1, 1, [0]), gl.load(x_ptr + at))
    gl.store(out_ptr + at, shared.load(gl.BlockedLayout([1], [32], [4], [0])))


shared_memory_of_gluon = partial(_launched, gluon_kernel)


def novel(x):
    """What a later version of Triton's language may have."""
    return tl.tensor(interpreter_builder.create_novel(x.handle), x.type)


@triton.jit
def novel_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, novel(tl.load(x_ptr + at)))


def an_unknown_method_of_the_builder() -> Launched:
    InterpreterBuilder.create_novel = lambda _, block: block
    x, out = torch.randn(N), torch.empty(N)
    novel_kernel[(1,)](x, out, N)
    assert torch.equal(out, x)  # of fp32 it is interpreted
    narrow = x.bfloat16()
    novel_kernel[(1,)](narrow, torch.empty_like(narrow), N)
    return Launched(out, out, x)


@triton.jit
def static_kernel(x_ptr, out_ptr, N: tl.constexpr):
    tl.static_assert(N == 3, "N must be 3")


a_failing_static_assertion = partial(_launched, static_kernel)


@triton.jit
def barriers_kernel(arrived_ptr, out_ptr, HOW: tl.constexpr):
    """All programs meet twice: the last to come goes on to the second meeting while the others are still at the first."""
    for meeting in range(1, 3):
        tl.atomic_add(arrived_ptr, 1)
        if HOW == "load":
            while tl.load(arrived_ptr, volatile=True) < meeting * tl.num_programs(0):
                pass
        elif HOW == "exchange":
            while tl.atomic_add(arrived_ptr, 0) < meeting * tl.num_programs(0):
                pass
        else:
            while tl.atomic_cas(arrived_ptr, -1, -1) < meeting * tl.num_programs(0):
                pass
    tl.store(out_ptr + tl.program_id(0), 1.0)


def _meeting(how: str) -> Launched:
    out = torch.empty(3)
    barriers_kernel[(3,)](torch.zeros(1, dtype=torch.int32), out, how)
    return Launched(out, torch.ones(3), out)


meeting_by_loads = partial(_meeting, "load")


meeting_by_exchange = partial(_meeting, "exchange")


meeting_by_comparison = partial(_meeting, "compare")
