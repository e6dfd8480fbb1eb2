"""On a GPU: functions called first by threads, PyTorch's samples, autocast and transforms."""

import subprocess
import sys

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F
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


def test_autocast_step_is_that_of_torch_functional():
    x, square, vector = (
        on_gpu.draw(64, 256),
        *(on_gpu.draw(*s, dtype=torch.float32, seed=1) for s in ((256, 256), (256,))),
    )
    leaves = [square.requires_grad_(), vector.requires_grad_()]

    def step(matmul, norm, softmax):
        with torch.autocast("cuda", torch.bfloat16):
            y = softmax(norm(matmul(x, square), vector))
            assert y.dtype == torch.float32
            return y, torch.autograd.grad(y.square().sum(), leaves)

    found = step(kernels.matmul, lambda y, w: kernels.rms_norm(y, 256, w), kernels.softmax)
    wanted = step(torch.matmul, lambda y, w: F.rms_norm(y, (256,), w), lambda y: F.softmax(y, -1))
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-3)


def test_function_transforms_agree():
    x, w = (on_gpu.draw(*shape, dtype=torch.float32) for shape in ((8, 5, 300), (300,)))
    pairs = [
        torch.func.vmap(torch.func.grad(lambda x, w, norm=norm: norm(x, w).square().sum(), argnums=(0, 1)), (0, None))(
            x, w
        )
        for norm in (lambda x, w: kernels.rms_norm(x, 300, w), lambda x, w: F.rms_norm(x, (300,), w))
    ]
    torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-4)
    labels = torch.arange(8, device="cuda")
    gradients = [
        torch.func.grad(lambda x, call=call: call(x, labels, w.abs(), label_smoothing=0.1))(x[:, 0])
        for call in (kernels.cross_entropy, F.cross_entropy)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


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
