"""Every variant of the studies, in Triton's interpreter."""

import sys

import torch
from interpreted import SPECS, against_reference, close, draw, poisoned
from tilescope_kernels.studies import block_reduction, compile_modes, strided_copy, tma_copy


def every_variant(name, workloads):
    """Every config of every implementation that has some."""
    for impl, implementation in SPECS[name].implementations.items():
        for config in implementation.configs:
            for workload in workloads:
                against_reference(name, f"{workload}-fp32", config=config, impl=impl)


def check_copies_write_every_element():
    module, launched = sys.modules["tilescope_kernels.studies.tma_copy"], tma_copy.multiprocessors
    module.multiprocessors = lambda tensor: 2
    try:
        with poisoned():
            every_variant("tma_copy", ("1x4", "130x264"))
    finally:
        module.multiprocessors = launched
    with poisoned():
        every_variant("strided_copy", ("1x1", "5003x7", "4096x32", "5x100"))


def check_copies_are_exact():
    x = draw(40, 30)
    for copy in (tma_copy.copy_through_pointers, lambda x: tma_copy.copy_through_descriptors(x[:, :8])):
        y = copy(x)
        assert torch.equal(y, x[:, : y.shape[1]])
    for stride in (1, 3, 40):
        assert torch.equal(strided_copy.strided_copy(x[:, 0], stride), x[:, 0])
        assert torch.equal(strided_copy.unit_copy(x[:, 0], stride), x[:, 0])


def check_sums():
    with poisoned():
        every_variant("block_reduction", ("1x1", "9x333", "3x5000"))


def check_blocks():
    against_reference("mlp_compile_modes", "5x6x9-fp32")
    against_reference("mlp_compile_regions", "5x6x9x3-fp32")
    x, gate, up, down = draw(5, 6), draw(9, 6, seed=1), draw(9, 6, seed=2), draw(6, 9, seed=3)
    wanted = compile_modes.plain_mlp(x, gate, up, down)
    compiled = torch.compile(compile_modes.fused_mlp, backend="aot_eager", fullgraph=True)
    close(compiled(x, gate, up, down), wanted)


def check_empty():
    for shape in ((0, 8), (3, 0)):
        assert tma_copy.copy_through_pointers(torch.empty(shape)).shape == shape
        assert tma_copy.copy_through_descriptors(torch.empty(shape)).shape == shape
        for variant in ("triton", "every_block", "warps"):
            total = block_reduction.SPEC.implementations[variant].call(torch.empty(shape))
            assert total.shape == shape[:1] and not total.any()
    assert strided_copy.strided_copy(torch.empty(0), 3).shape == strided_copy.unit_copy(torch.empty(0), 3).shape == (0,)
