"""Launchers as people write them for one GPU: they ask it, allocate on it and refuse tensors that are elsewhere."""

import torch
import triton
import triton.language as tl
from tilescope_kernels.spec import DTYPES, Cost, Implementation, KernelSpec, Workload
from triton.runtime import driver


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    """Scales what lies at every ``BLOCK * programs`` from its own first element."""
    step = tl.num_programs(0) * BLOCK
    for start in range(tl.program_id(0) * BLOCK, n, step):
        at = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


def _on_gpu(x: torch.Tensor) -> None:
    if not x.is_cuda or x.device.type != "cuda" or x.is_cpu or x.get_device() != 0:
        raise ValueError(f"x is on {x.device}: it must be on a GPU")


def by_properties(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    """As many programs as PyTorch says that there are multiprocessors."""
    _on_gpu(x)
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    y = torch.empty(x.shape, dtype=x.dtype, device=f"cuda:{torch.cuda.current_device()}")
    with torch.cuda.device(x.device):
        scale_kernel[(programs,)](x, y, x.numel(), factor, BLOCK=16)
    return y


def by_driver(x: torch.Tensor) -> torch.Tensor:
    """As many programs as Triton says that there are multiprocessors, in blocks by the shared memory there is."""
    _on_gpu(x)
    device = driver.active.get_active_torch_device()
    entries = driver.active.utils.get_device_properties(device.index)
    block = 32 if entries["max_shared_mem"] > 200_000 and driver.active.get_current_target().arch >= 90 else 16
    y = torch.zeros_like(x, device=device)
    scale_kernel[(entries["multiprocessor_count"],)](x, y, x.numel(), 2.0, BLOCK=block)
    return y


class Doubled(torch.autograd.Function):
    """Asks in both directions."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return by_properties(x)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, dy):
        _on_gpu(ctx.saved_tensors[0])
        return by_properties(dy.contiguous())


@torch.library.custom_op("tilescope_tests::doubled_on_gpu", mutates_args=(), device_types="cuda")
def by_operator(x: torch.Tensor) -> torch.Tensor:
    return by_properties(x)


by_operator.register_fake(torch.empty_like)


def by_clock(x: torch.Tensor) -> torch.Tensor:
    """Asks what no document says of a device."""
    scale_kernel[(torch.cuda.get_device_properties(x.device).clock_rate // 1000,)](x, x, x.numel(), 2.0, BLOCK=16)
    return x


def _draw(workload: Workload, device) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, DTYPES[workload.dtype][0])
    if torch.device(device).type == "meta":
        return {"x": torch.empty(workload.dims["n"], dtype=dtype, device=device, requires_grad=True)}
    numbers = torch.Generator(device=device).manual_seed(workload.seed)
    return {"x": torch.randn(workload.dims["n"], generator=numbers, device=device, dtype=dtype, requires_grad=True)}


DOUBLED = KernelSpec(
    name="doubled",
    summary="Doubles, with a program for each multiprocessor.",
    dims=("n",),
    implementations={
        "properties": Implementation(lambda x: Doubled.apply(x)),  # noqa: PLW0108 - by position
        "driver": Implementation(lambda x: by_driver(x.detach())),
        "operator": Implementation(lambda x: by_operator(x.detach())),
        "clock": Implementation(lambda x: by_clock(x.detach())),
    },
    reference=lambda x: 2 * x,
    inputs=_draw,
    workloads=(Workload({"n": 5000}, "fp32", label="small"),),
    cost=lambda workload, direction: Cost(0, 0, 0),
    tolerance={"fp32": 1e-6},
    passes=("forward", "backward"),
)
