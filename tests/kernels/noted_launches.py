"""A GPU of which there is all but the chip: Triton compiles two small kernels for it, and what would be launched is noted."""

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tilescope_kernels._shared import launches
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

MADE: list[tuple[Any, ...]] = []
SEARCHES: list[str] = []
#: Devices whose memory was asked for, which makes a CUDA context in the thread.
CONTEXTS: list[int] = []


class Launcher:
    """Stands where Triton hands a compiled kernel to the GPU's driver."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.name = metadata.name

    def __call__(self, *args: Any) -> None:
        enter, leave, launched = args[7], args[8], args[9:]
        for hook in (enter, leave):
            if hook is not None:
                hook(args[6])
        pointers = tuple(x.data_ptr() if isinstance(x, torch.Tensor) else x for x in launched)
        MADE.append((self.name, args[:4], *pointers))


@triton.jit
def scaled_kernel(y_ptr, x_ptr, bias_ptr, strides, n, factor, BLOCK: tl.constexpr, PLAIN: tl.constexpr = True):  # noqa: PLR0917
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + offsets * strides[0], mask=offsets < n) * factor
    if bias_ptr is not None:
        y += tl.load(bias_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, y, mask=offsets < n)


@triton.jit
def tiles_kernel(y, x, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK
    y.store([place, 0], x.load([place, 0]))


def searched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    SEARCHES.append("run")
    return triton.JITFunction.run(kernel, *args, **kwargs)


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    """A GPU of which there is all but the chip: Triton compiles for it, its launches are noted, and searches for a kernel."""
    # What is compiled is kept for the tests that follow, which look for the same.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    utils = SimpleNamespace(
        load_binary=lambda *_: (0, 1, 16, 0, 1024), get_device_properties=lambda _: {"max_shared_mem": 232448}
    )
    stub = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 7,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=Launcher,
        utils=utils,
    )
    monkeypatch.setattr(driver, "_active", stub)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", CONTEXTS.append)
    for kernel in (scaled_kernel, tiles_kernel):
        monkeypatch.setattr(kernel, "run", functools.partial(searched, kernel))
        monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
    launches._MADE.clear()
    launches._CHOSEN.clear()
    MADE.clear()
    SEARCHES.clear()
    CONTEXTS.clear()
    yield
    launches._MADE.clear()
    launches._CHOSEN.clear()
