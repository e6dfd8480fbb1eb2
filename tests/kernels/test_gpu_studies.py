"""Every variant of the studies on a GPU against its reference, and that the variants differ in what they study."""

import pytest
from tilescope_kernels import FAMILIES

from . import on_gpu

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]

BY_NAME = {spec.name: spec for spec in FAMILIES["studies"]}
SHAPES = {
    "tma_copy": ("3x16", "1823x784"),
    "strided_copy": ("1423763x7", "65536x32"),
    "block_reduction": ("1823x781", "37x4096"),
    "mlp_compile_modes": ("130x256x520",),
    "mlp_compile_regions": ("130x256x520x3",),
}
VARIANTS = [(name, impl) for name in SHAPES for impl in BY_NAME[name].implementations]


@pytest.mark.parametrize(("name", "impl"), VARIANTS, ids=["-".join(variant) for variant in VARIANTS])
def test_variants_agree(name, impl):
    for shape in SHAPES[name]:
        for dtype in ("bf16",) if name.startswith("mlp") else ("fp32", "bf16"):
            # Twice: a CUDA graph is recorded before it is replayed.
            for config in BY_NAME[name].implementations[impl].configs or (None, None):
                on_gpu.against_reference(name, f"{shape}-{dtype}", config, impl=impl)
