"""On a GPU: functions called first by threads, PyTorch's samples, autocast and transforms."""

import subprocess
import sys

import pytest
import tilescope_kernels as kernels
import torch
import triton

from . import on_gpu

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]

#: Eight threads call a function of some families first at the same time, each on a stream of its own, and agree.
THREADS = """
import sys, threading
import torch
from tilescope_kernels import CATALOG
for spec in CATALOG:
    if spec.name not in "softmax rms_norm matmul fp8_tensor causal_attention".split():
        continue
    inputs = spec.inputs(spec.workload("small"), "cuda")
    call = spec.implementations["triton"].call
    torch.cuda.synchronize()
    start, made, raised = threading.Barrier(8), [], []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                start.wait()
                made.append(call(**inputs))
                torch.cuda.current_stream().synchronize()
        except Exception as error:
            raised.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not raised, (spec.name, raised)
    for one in made[1:]:
        pairs = zip(one, made[0]) if isinstance(one, tuple) else [(one, made[0])]
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs if a.element_size() > 1), spec.name
"""


def test_functions_called_first_by_threads_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_opinfo_samples_agree(dtype, tolerance):
    from .opinfo_samples import compare_with_opinfo

    compare_with_opinfo(dtype, "cuda", tolerance, every=4)


def test_warm_leaves_nothing_to_compile(monkeypatch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = kernels.RMSNorm(1072, device="cuda", dtype=torch.bfloat16)
            self.weight = torch.nn.Parameter(on_gpu.draw(1072, 1072, scale=0.03))

        def forward(self, x):
            y = kernels.matmul(self.norm(x), self.weight)
            heads = kernels.swiglu(y, x).view(1, -1, 16, 67).transpose(1, 2)
            return kernels.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    model, x = Model(), on_gpu.draw(304, 1072).requires_grad_()
    assert kernels.warm(model, x) > 5
    compiled = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **told: compiled.append(told["repr"]))
    model(x).square().sum().backward()
    assert not compiled
