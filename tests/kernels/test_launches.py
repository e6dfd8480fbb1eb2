"""A launch reaches the compiled kernel with what Triton would hand it, and everyone who observes launches sees it."""

import ast
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from tilescope.execution import launches as caught
from tilescope.execution import observe
from tilescope_kernels._shared import compiling, launching
from tilescope_kernels._shared.launching import launch
from tilescope_kernels._shared.operators import operator
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import make_launcher
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass
class Gpu:
    """What the stand-in saw: launches as (name, (x, y, z, stream), *arguments), runs of Triton's own search, contexts made."""

    launched: list[tuple[Any, ...]] = field(default_factory=list)
    searches: list[str] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    current: int = 0
    #: The device that every tensor claims to be on.
    of_tensors: int = 0


@triton.jit
def scaled_kernel(y_ptr, x_ptr, bias_ptr, strides, n, factor, BLOCK: tl.constexpr, PLAIN: tl.constexpr = True):  # noqa: PLR0917
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + offsets * strides[0], mask=offsets < n) * factor
    if bias_ptr is not None:
        y += tl.load(bias_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, y, mask=offsets < n)


@triton.jit(do_not_specialize=["n"])
def counted_kernel(y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, 1.0, mask=offsets < n)


@triton.jit
def tiles_kernel(y, x, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK
    y.store([place, 0], x.load([place, 0]))


def _searched(gpu, kernel, *args, **kwargs):
    gpu.searches.append(kernel.__name__)
    return triton.JITFunction.run(kernel, *args, **kwargs)


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    """A GPU without its chip, which every tensor claims to be on: Triton compiles for it, and its launches are noted."""
    seen = Gpu()

    class Launcher:
        """Triton hands a compiled kernel to this instead of the GPU's driver."""

        def __init__(self, src, metadata):
            self.name = metadata.name

        def __call__(self, *args):
            enter, leave, launched = args[7], args[8], args[9:]
            for hook in (enter, leave):
                if hook is not None:
                    hook(args[6])
            pointers = tuple(x.data_ptr() if isinstance(x, torch.Tensor) else x for x in launched)
            seen.launched.append((self.name, args[:4], *pointers))

    # Tests share what is compiled.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    stub = SimpleNamespace(
        get_current_device=lambda: seen.current,
        get_current_stream=lambda _: 7,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=Launcher,
        utils=SimpleNamespace(
            load_binary=lambda *_: (None, 1, 16, 0, 1024), get_device_properties=lambda _: {"max_shared_mem": 232448}
        ),
    )

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            seen.current = self.index

        def __exit__(self, *_):
            seen.current = 0

    fakes = {
        "Tensor.get_device": lambda tensor: -1 if tensor.is_meta else seen.of_tensors,
        "cuda.mem_get_info": seen.contexts.append,
        "cuda.device": Device,
        "cuda.is_current_stream_capturing": lambda: False,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(f"torch.{name}", fake)
    for kernel in (scaled_kernel, counted_kernel, tiles_kernel):
        monkeypatch.setattr(kernel, "run", functools.partial(_searched, seen, kernel))
        kernel.device_caches.clear()
    driver.set_active(stub)
    yield seen
    driver.set_active(None)


X, Y = torch.zeros(1024), torch.zeros(1024)


def start(n=64, x=X, **more):
    given = {"kernel": scaled_kernel, "grid": (triton.cdiv(n, 32), 2), "bias": None, "factor": 2.0, "num_warps": 1}
    given |= {"BLOCK": 32, **more}
    kernel, grid, bias, factor = (given.pop(name) for name in ("kernel", "grid", "bias", "factor"))
    launch(kernel, grid, Y, x, bias, (1, 64), n, factor, **given)


def test_launch_again_is_alike_without_a_search(gpu):
    start()
    start()
    first, second = gpu.launched
    assert first == second
    assert first[1:] == ((2, 2, 1, 7), Y.data_ptr(), X.data_ptr(), None, (1, 64), 64, 2.0, 32, True)
    assert len(gpu.searches) == 1


def test_launch_new_size_of_a_count_is_not_searched(gpu):
    for n in (64, 65, 1, 2**31 + 64):
        launch(counted_kernel, (1,), Y, n, BLOCK=32)
    assert [launched[3] for launched in gpu.launched] == [64, 65, 1, 2**31 + 64]
    assert len(gpu.searches) == 2, "the last has more than 32 bits"


@pytest.mark.parametrize(
    "other",
    [
        {"n": 65}, {"n": 1}, {"n": 2**31 + 64}, {"x": torch.zeros(1025)[1:]}, {"x": torch.zeros(1024, dtype=torch.bfloat16)},
        {"factor": 2}, {"bias": torch.zeros(64)}, {"BLOCK": 64}, {"num_warps": 2}, {"PLAIN": False},
    ],
    ids=["odd", "one", "long", "alignment", "dtype", "type", "none", "block", "warps", "default"],
)  # fmt: skip
def test_launch_other_specialization_is_searched_once(gpu, other):
    start()
    start(**other)
    assert len(gpu.searches) == 2
    start(**other)
    start()
    assert len(gpu.searches) == 2
    assert gpu.launched[0] == gpu.launched[3] and gpu.launched[1] == gpu.launched[2]


def sized(n, factor=2.0, **more):
    launch(scaled_kernel, (triton.cdiv(n, 32),), Y, X, None, (1, 1), n, factor, BLOCK=32, num_warps=1, **more)


def test_launch_new_size_that_compiles_nothing_is_found(gpu):
    for n in (33, 34, 17, 1000001):
        sized(n)
    for n in (16, 48, 2**20):
        sized(n)
    sized(16, factor=3.5)
    assert len(gpu.searches) == 2
    assert [launched[6] for launched in gpu.launched] == [33, 34, 17, 1000001, 16, 48, 2**20, 16]
    assert [launched[7] for launched in gpu.launched[-2:]] == [2.0, 3.5]


def test_launch_where_observed_is_triton_s(gpu):
    start()
    seen: list[Any] = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        start()
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    assert [data.get()["name"] for data in seen] == ["scaled_kernel"]
    before: list[Any] = []
    scaled_kernel.pre_run_hooks.append(lambda *args, **_: before.append(args))
    try:
        start()
    finally:
        scaled_kernel.pre_run_hooks.clear()
    assert len(before) == 1
    with observe.launches() as noted:
        start()
    assert [one["function"] for one in noted] == ["scaled_kernel"]
    start()
    assert (len(gpu.searches), len(gpu.launched)) == (4, 5)


def test_launch_where_caught_is_not_made(gpu, monkeypatch):
    start()
    monkeypatch.delattr(scaled_kernel, "run")
    with caught.catch() as launched:
        start()
    assert [each.arguments["n"] for each in launched] == [64]
    assert len(gpu.launched) == 1


def test_launch_follows_triton_s_cache_and_settings(gpu):
    start()
    scaled_kernel.device_caches.clear()
    start()
    assert len(gpu.searches) == 2
    with knobs.runtime.scope():
        knobs.runtime.debug = True
        start()
    assert len(gpu.searches) == 3


def test_launch_on_another_gpu_makes_it_current(gpu):
    start()
    gpu.of_tensors = 1
    start()
    start()
    assert len(gpu.searches) == 2 and gpu.current == 0
    assert sorted(scaled_kernel.device_caches) == [0, 1]


def test_launch_without_a_gpu_is_triton_s(gpu):
    gpu.of_tensors = -1
    start()
    start()
    assert len(gpu.searches) == 2


def test_launch_with_a_subclass_is_triton_s(gpu):
    class Subclass(torch.Tensor):
        pass

    for _ in range(2):
        start(x=X.as_subclass(Subclass))
    assert len(gpu.searches) == 2


def test_launch_with_descriptors_is_keyed_by_tile(gpu):
    def copied(rows, block=16, dtype=torch.float16):
        tensors = (torch.zeros(rows, 64, dtype=dtype) for _ in range(2))
        tiles = [TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [block, 64]) for tensor in tensors]
        launch(tiles_kernel, (2,), *tiles, BLOCK=block)
        return tiles

    copied(32)
    tiles = copied(48)
    assert len(gpu.searches) == 1
    assert [given is tile for given, tile in zip(gpu.launched[-1][2:], tiles, strict=False)] == [True, True]
    copied(32, block=32)
    copied(32, dtype=torch.bfloat16)
    assert len(gpu.searches) == 3
    # Encoding a descriptor fails in a thread without a context. Autograd's threads start without one.
    gpu.contexts.clear()
    with ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            thread.submit(copied, 32).result()
    assert gpu.contexts == [0]


def test_launch_first_from_eight_threads_succeeds(gpu):
    together, made = threading.Barrier(8), []

    def first(number):
        together.wait()
        for n in (64 + number, 80, 96):
            sized(n)
        made.append(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(first, range(8)))
    assert sorted(made) == list(range(8))


def test_forward_pass_does_not_wait_for_kernels_of_the_backward_pass(gpu, monkeypatch):
    @operator("scaled_in_this_test", fake=torch.empty_like)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(*x.shape)
        launch(scaled_kernel, (1,), y, x, None, (1,), 7, 1.5, BLOCK=128)
        return y

    @scaled.gradient(lambda x, y: ())
    def differentiate(ctx, dy):
        dx = dy.new_empty(*dy.shape)
        launch(counted_kernel, (1,), dx, 7, BLOCK=256)
        return dx

    returned, waited = threading.Event(), []

    def compiled(src, **_):
        if src.name == "counted_kernel":
            waited.append(returned.wait(10))

    monkeypatch.setattr(knobs.compilation, "listener", compiled)
    y = scaled(torch.zeros(7, requires_grad=True))
    returned.set()
    assert [launched[0] for launched in gpu.launched] == ["scaled_kernel"]
    y.sum().backward()
    assert [launched[0] for launched in gpu.launched] == ["scaled_kernel", "counted_kernel"]
    assert waited == [True], "compiled once, and not before the forward pass returned"


def test_kernels_are_launched_by_launch_alone():
    file = Path(launch.__code__.co_filename)
    found = [
        f"{path.relative_to(file.parents[1])}:{node.lineno}"
        for path in file.parents[1].rglob("*.py")
        if path != file
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("tuple", "list", "dict", "type"))
    ]  # fmt: skip
    assert found == []


def test_launcher_is_known_before_its_kernel_is_compiled(gpu):
    tiles = [TensorDescriptor.from_tensor(tensor.view(32, 32), [32, 32]) for tensor in (Y, X)]
    with compiling.compiled_alone(1) as started:
        launch(tiles_kernel, (1,), *tiles, BLOCK=32)
        launch(scaled_kernel, (2,), Y, X, None, (1,), 64, 2.0, BLOCK=32)
        kernels = [each.result() for each in started]
    for kernel in kernels:
        metas = kernel.metadata.tensordesc_meta, compiling.LauncherMetadata(kernel.src).tensordesc_meta
        known, guessed = (make_launcher(kernel.src.constants, kernel.src.signature, meta) for meta in metas)
        assert known == guessed
    assert len(kernels) == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_integers_of_launchers_equal_those_of_triton(numerator, denominator):
    assert launching.cdiv(numerator, denominator) == triton.cdiv(numerator, denominator)
    assert launching.next_power_of_2(denominator) == triton.next_power_of_2(denominator)
    assert launching.next_power_of_2(0) == 1
