"""Kernels behind the operators that people register with PyTorch, with gradients, as in a file of their own."""

import torch
import triton
import triton.language as tl
from tilescope_kernels.spec import DTYPES, Cost, Implementation, KernelSpec, Workload


@triton.jit
def sine_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, tl.sin(x), mask=at < n)


@triton.jit
def cosine_kernel(x_ptr, dy_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(dx_ptr + at, tl.cos(x) * dy, mask=at < n)


@triton.jit
def warps_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Asks for what is known on a GPU only."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, tl.sin(x) * (tl.extra.cuda.num_warps() // 4), mask=at < n)


def _launched(kernel, *inputs: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(inputs[0])
    kernel[lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)](*inputs, out, out.numel(), BLOCK=128)
    return out


@torch.library.triton_op("tilescope_tests::sine", mutates_args={})
def sine(x: torch.Tensor) -> torch.Tensor:
    return _launched(torch.library.wrap_triton(sine_kernel), x)


@torch.library.triton_op("tilescope_tests::sine_backward", mutates_args={})
def sine_backward(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    return _launched(torch.library.wrap_triton(cosine_kernel), x, dy)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


sine.register_autograd(lambda ctx, dy: sine_backward(*ctx.saved_tensors, dy.contiguous()), setup_context=_save)


@torch.library.custom_op("tilescope_tests::custom_sine", mutates_args=())
def custom_sine(x: torch.Tensor) -> torch.Tensor:
    return _launched(sine_kernel, x)


custom_sine.register_fake(torch.empty_like)
custom_sine.register_autograd(
    lambda ctx, dy: _launched(cosine_kernel, *ctx.saved_tensors, dy.contiguous()), setup_context=_save
)


# Its code for GPUs is a library's in C++, which is not here.
torch.library.define("tilescope_tests::gpu_sine", "(Tensor x) -> Tensor")
torch.library.impl("tilescope_tests::gpu_sine", "Meta", torch.empty_like)


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _launched(sine_kernel, x)

    @staticmethod
    def backward(ctx, dy):
        return _launched(cosine_kernel, *ctx.saved_tensors, dy.contiguous())


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sine.apply(x)


@torch.compile
def compiled_helper(x: torch.Tensor) -> torch.Tensor:
    return x * 1.0


@torch.compile(fullgraph=True)
def compiled_as_a_whole(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def with_a_compiled_helper(x: torch.Tensor) -> torch.Tensor:
    return _Sine.apply(compiled_helper(x))


def _draw(workload: Workload, device) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, DTYPES[workload.dtype][0])
    place = torch.device(device)
    if place.type == "meta":
        return {"x": torch.empty(workload.dims["n"], dtype=dtype, device=place, requires_grad=True)}
    numbers = torch.Generator(place).manual_seed(workload.seed)
    return {"x": torch.randn(workload.dims["n"], generator=numbers, device=place).to(dtype).requires_grad_()}


SINE = KernelSpec(
    name="sine", summary="A sine, with its gradient.", dims=("n",),
    implementations={
        "triton_op": Implementation(sine),
        "custom_op": Implementation(custom_sine),
        "module": Implementation(Module()),
        "compiled_helper": Implementation(with_a_compiled_helper),
        "warps": Implementation(lambda x: _launched(warps_kernel, x)),
        "gpu_only": Implementation(lambda x: _launched(sine_kernel, torch.ops.tilescope_tests.gpu_sine(x.detach()))),
        "fullgraph": Implementation(compiled_as_a_whole),
    },
    reference=torch.sin, inputs=_draw, workloads=(Workload({"n": 1000}, "fp32", label="small"),),
    cost=lambda workload, direction: Cost(0, 0, 0), tolerance={"fp32": 1e-5, "bf16": 2e-2},
    passes=("forward", "backward"),
)  # fmt: skip
