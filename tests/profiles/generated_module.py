"""A module in the form in which torch.compile writes one, for tests: with a decorator of Inductor's and its helpers."""

import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.runtime.triton_helpers import libdevice

DEVICE = DeviceProperties(
    type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, warp_size=32,
)  # fmt: skip


@triton_heuristics.pointwise(
    size_hints={"x": 1024},
    filename=__file__,
    triton_meta={
        "signature": {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"},
        "device": DEVICE,
        "constants": {},
        "configs": [{(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}],
    },
    inductor_meta={"grid_type": "Grid1D", "kernel_name": "triton_poi_fused_relu_tanh_0", "force_disable_caches": True},
    min_elem_per_thread=0,
)
@triton.jit
def triton_poi_fused_relu_tanh_0(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = libdevice.tanh(tl.load(in_ptr0 + (xindex), xmask))
    tl.store(out_ptr0 + (xindex), triton_helpers.maximum(tmp0, 0), xmask)
