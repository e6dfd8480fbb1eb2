"""Launches of an operator or a public function that are made again, without what was computed to make them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tilescope_kernels as library
import torch
from tilescope.execution import launches as caught
from tilescope_kernels._shared import kept as replays
from tilescope_kernels._shared import launchers, launches, launching, operators
from tilescope_kernels._shared.kept import Kept
from torch.autograd import forward_ad
from torch.overrides import BaseTorchFunctionMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from .noted_launches import CONTEXTS, MADE, SEARCHES, Launcher, gpu, scaled_kernel, tiles_kernel  # noqa: F401 - gpu is a fixture

pytestmark = pytest.mark.usefixtures("gpu")

OTHER = torch.zeros(1024)


def two(y: torch.Tensor | None, x: torch.Tensor, n: int = 64) -> torch.Tensor:
    """An operator of two launches and a tensor between them; it allocates its result too, unless it is given one."""
    CALLS.append(n)
    y = x.new_empty(1024) if y is None else y
    between = x.new_empty(2048)[1024:]
    launches.launch(scaled_kernel, (2,), between, x, None, (1, n), n, 2.0, BLOCK=32, num_warps=1)
    launches.launch(scaled_kernel, (2, 3), y, between, x, (1, n), n, 3.0, BLOCK=32, num_warps=1)
    return y


CALLS: list[int] = []


def calls(kept: Kept, *args: Any, times: int = 1) -> int:
    """How often the operator itself was called in so many calls."""
    CALLS.clear()
    for _ in range(times):
        kept(*args)
    return len(CALLS)


def test_an_operator_s_launches_are_made_again_with_other_tensors():
    kept = Kept(two)
    assert calls(kept, None, torch.zeros(1024), times=2) == 2
    MADE.clear()
    SEARCHES.clear()
    x = torch.zeros(1024)
    CALLS.clear()
    y = kept(None, x)
    assert not CALLS and not SEARCHES
    assert (y.shape, y.dtype, y.stride()) == ((1024,), torch.float32, (1,)) and y.data_ptr() != x.data_ptr()
    one, two_ = MADE
    between = one[2]
    assert one == ("scaled_kernel", (2, 1, 1, 7), between, x.data_ptr(), None, (1, 64), 64, 2.0, 32, True)
    assert two_ == ("scaled_kernel", (2, 3, 1, 7), y.data_ptr(), between, x.data_ptr(), (1, 64), 64, 3.0, 32, True)
    # Another kind of call: other numbers, extents, strides, dtypes, alignment.
    for args in ((None, x, 65), (None, torch.zeros(1025)), (None, torch.zeros(32, 32)), (None, torch.zeros(32, 32).T),
                 (None, torch.zeros(1024, dtype=torch.float16)), (None, torch.zeros(1025)[1:])):  # fmt: skip
        assert calls(kept, *args, times=4) == 2, args
    assert calls(kept, None, x) == 0
    kept.forget()
    assert calls(kept, None, x) == 1


def test_results_are_the_tensors_that_were_allocated_as_they_were_viewed():
    def results(x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        both = x.new_empty((2, 512), dtype=torch.float16)
        launches.launch(scaled_kernel, (2,), both, x, None, (1, 64), 64, 2.0, BLOCK=32, num_warps=1)
        return both[1], None, both.T, both

    kept, x = Kept(results), torch.zeros(1024)
    first, again = results(x), [kept(x) for _ in range(3)][-1]
    assert again[1] is None and again[0].data_ptr() == again[3].data_ptr() + 1024
    for one, other in zip(first, again, strict=True):
        assert one is other or (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def test_what_nothing_takes_is_not_allocated_again():
    def wasteful(x: torch.Tensor) -> torch.Tensor:
        x.new_empty(7)
        return two(None, x)

    kept, x = Kept(wasteful), torch.zeros(1024)
    assert calls(kept, x, times=3) == 2
    (again,) = kept._known.values()
    assert [shape for _, shape, *_ in again._allocations] == [(1024,), (2048,)]


def test_launches_are_not_made_again_where_somebody_looks_on(monkeypatch):
    kept, x = Kept(two), torch.zeros(1024)
    assert calls(kept, None, x, times=3) == 2
    with monkeypatch.context() as patched:
        patched.delattr(scaled_kernel, "run")
        with caught.catch() as launched:
            assert calls(kept, None, x) == 1
        assert len(launched) == 2
    hook = [].append
    knobs.runtime.launch_enter_hook.add(hook)
    assert calls(kept, None, x) == 1
    new = Kept(two)
    assert calls(new, None, x, times=4) == 4
    knobs.runtime.launch_enter_hook.remove(hook)
    assert [calls(kept, None, x), calls(new, None, x, times=3)] == [0, 1]
    monkeypatch.setattr(knobs.runtime, "debug", True)
    assert calls(kept, None, x) == 1


def zeroed(x: torch.Tensor) -> torch.Tensor:
    return two(x.new_zeros(1024), x)


def of_elsewhere(x: torch.Tensor) -> torch.Tensor:
    return two(OTHER, x)


def in_place(x: torch.Tensor) -> torch.Tensor:
    return two(x, x)


def nothing(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(0)
    return x.new_empty(3)


@pytest.mark.parametrize("function", [zeroed, of_elsewhere, in_place, nothing])
def test_what_does_more_than_launch_is_called_every_time(function):
    assert calls(Kept(function), torch.zeros(1024), times=4) == 4


def test_a_function_of_which_no_call_can_be_made_again_is_no_longer_asked():
    kept = Kept(zeroed)
    for size in range(1024, 1030):
        assert calls(kept, torch.zeros(size), times=3) == 3
    assert len(kept._known) == 4
    kept.forget()
    assert calls(kept, torch.zeros(1024), times=3) == 3 and len(kept._known) == 1
    kept = Kept(lambda x: two(None, x) if x.numel() == 1024 else zeroed(x))
    assert calls(kept, torch.zeros(1024), times=3) == 2
    for size in range(1025, 1032):
        assert calls(kept, torch.zeros(size), times=3) == 3
    assert calls(kept, torch.zeros(1024)) == 0 and len(kept._known) == 8


def test_one_tensor_in_two_places_is_another_kind_than_two_tensors_and_two_views_of_one_address_are_one():
    def given(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        two(y, x)
        return two(None, x)

    kept, x, other = Kept(given), torch.zeros(1024), torch.zeros(1024)
    assert calls(kept, other, x, times=4) == 4
    assert calls(kept, x, x, times=4) == 4
    for one, same in ((x, other), (x, x), (other.view(1024), other)):
        MADE.clear()
        assert calls(kept, one, same) == 0
        assert (MADE[1][2], MADE[0][3]) == (one.data_ptr(), same.data_ptr())
    viewed = Kept(given)
    assert calls(viewed, x, x.view(1024), times=4) == 4 and calls(viewed, other.view(1024), other) == 0
    # What writes one and returns it returns what was given, which is not to be had again.
    assert calls(Kept(two), x, x.view(1024), times=4) == 4


def test_a_thread_without_a_context_gets_one_before_a_replay_encodes_a_descriptor():
    def copied(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        tiles = [TensorDescriptor(tensor, [32, 64], [64, 1], [16, 64]) for tensor in (y, x)]
        launches.launch(tiles_kernel, (2,), *tiles, BLOCK=16)
        return y

    kept, x = Kept(copied), torch.zeros(32, 64, dtype=torch.float16)
    for _ in range(3):
        kept(x)
    CONTEXTS.clear()
    with ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            thread.submit(kept, x).result()
    assert CONTEXTS == [0]


def test_arguments_like_the_latest_ones_are_recognized_without_a_signature(monkeypatch):
    kept, x = Kept(two), torch.zeros(1024)
    assert kept.repeat((None, x), {}) is None
    assert calls(kept, None, x, 64, times=3) == 2
    monkeypatch.setattr(replays, "_kind", lambda *_: pytest.fail("a signature"))
    MADE.clear()
    CALLS.clear()
    y = kept.repeat((None, other := torch.ones(1024), 64), {})
    assert not CALLS and (MADE[0][3], MADE[1][2]) == (other.data_ptr(), y.data_ptr())
    parameter, leaf = torch.nn.Parameter(x, requires_grad=False), torch.zeros(1024).requires_grad_()
    unlike = (
        x.half(), torch.zeros(1025), torch.zeros(32, 32), torch.zeros(2048)[::2], torch.zeros(1025)[1:], parameter, leaf,
        x.as_subclass(Subclass), x.to("meta"), None, 1024,
    )  # fmt: skip
    for args in ((None, x), (None, x, 65), (None, x, 64.0), (x, x, 64), *((None, each, 64) for each in unlike)):
        assert kept.repeat(args, {}) is None, args
    assert kept.repeat((None, x), {"n": 64}) is None
    with Look():
        assert kept.repeat((None, x, 64), {}) is None
    assert kept.repeat((None, x, int("64")), {}) is not None
    kept.forget()
    assert kept.repeat((None, x, 64), {}) is None and not CALLS


def test_tensors_that_are_launched_alike_but_are_of_other_kinds_are_each_recognized():
    kept, x = Kept(two), torch.zeros(1024)
    with torch.inference_mode():
        inferred = torch.zeros(1024)
    kinds = [x, torch.nn.Parameter(x, requires_grad=False), x.clone().requires_grad_()]
    every = [*((torch.no_grad, x) for x in kinds), *((torch.inference_mode, x) for x in (*kinds, inferred))]

    def each(call: Any) -> list[Any]:
        made = []
        for mode, tensor in every:
            with mode():
                made.append(call(tensor))
        return made

    assert [each(lambda tensor: calls(kept, None, tensor)) for _ in range(4)] == [[1] * 7, [1] * 7, [0] * 7, [0] * 7]
    assert None not in each(lambda tensor: kept.repeat((None, tensor), {}))


def test_arguments_are_not_recognized_where_a_gradient_or_a_shared_address_matters(monkeypatch):
    kept, leaf = Kept(two), torch.zeros(1024).requires_grad_()
    with torch.no_grad():
        assert calls(kept, None, leaf, times=3) == 2
        assert kept.repeat((None, leaf), {}) is not None
    assert kept.repeat((None, leaf), {}) is None

    def given(y: torch.Tensor, x: torch.Tensor, *, n: int = 64) -> torch.Tensor:
        return two(None, x, n + y.numel() - 1024)

    kept, x, y = Kept(given), torch.zeros(1024), torch.zeros(1024)
    for _ in range(3):
        kept(y, x, n=True)
    assert kept.repeat((x, y), {"n": True}) is not None
    for args, kwargs in (
        ((y, x), {"n": 1}),
        ((y, x), {"m": True}),
        ((x, x), {"n": True}),
        ((x, x.view(1024)), {"n": True}),
    ):
        assert kept.repeat(args, kwargs) is None
    for _ in range(3):
        kept(x, x)
    assert kept.repeat((x, x), {}) is None
    shaped = Kept(lambda x, shape: two(None, x, shape[0]))
    for _ in range(3):
        shaped(x, (1000, 1))
    assert shaped.repeat((x, (int("1000"), 1)), {}) is not None
    assert shaped.repeat((x, (1000, True)), {}) is None and shaped.repeat((x, torch.Size((1000, 1))), {}) is None
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    old = Kept(two)
    assert calls(old, None, x, times=4) == 2 and old.repeat((None, x), {}) is None


def doubled(x: torch.Tensor, dim: int = -1, *, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """A public function: of a view, by an operator, in another shape."""
    CALLS.append(dim)
    return double(x.reshape(-1), 64).reshape(shape or x.shape)


@operators.operator("test_launches_double")
def double(x: torch.Tensor, n: int) -> torch.Tensor:
    y = torch.empty_like(x)
    launches.launch(scaled_kernel, (2,), y, x, None, (1, n), n, 2.0, BLOCK=32, num_warps=1)
    return y


@pytest.fixture
def public(monkeypatch):
    monkeypatch.setattr(operators, "DIRECT", "is_cpu")
    return operators.remembered(doubled)


def test_a_public_function_s_launches_are_made_again_and_its_result_is_as_it_was(public):
    x = torch.zeros(32, 32)
    assert calls(public, x, times=4) == 2
    for kwargs in ({}, {"shape": (4, 256)}, {"shape": (4, 256), "dim": 0}):
        results = [public(x, **kwargs) for _ in range(3)]
        MADE.clear()
        CALLS.clear()
        result = public(x, **kwargs)
        assert not CALLS and MADE[0][2:4] == (result.data_ptr(), x.data_ptr())
        assert (result.shape, result.stride()) == (results[0].shape, results[0].stride())
        assert result.shape == kwargs.get("shape", x.shape)
    assert public.__name__ == "doubled"
    with torch.no_grad():
        assert calls(public, x.requires_grad_(), times=4) == 2
    assert not public(torch.zeros(32, 32)).requires_grad


def test_a_public_function_is_called_where_more_than_its_launches_matters(public, monkeypatch):
    x = torch.zeros(32, 32)
    assert calls(public, x, times=3) == 2
    leaf = torch.zeros(32, 32).requires_grad_()
    assert calls(public, leaf, times=4) == 4  # autograd has to know
    assert calls(public, torch.zeros(64, 32)[::2], times=4) == 4  # a copy is made
    assert calls(public, x.as_subclass(Subclass), times=4) == 4
    assert calls(public, x, {}, times=4) == 4
    assert calls(public, torch._neg_view(x), times=4) == 4  # memory has the other sign
    torch.set_autocast_enabled("cuda", True)
    assert calls(public, x) == 1
    torch.set_autocast_enabled("cuda", False)
    for onlooker in (Look(), BaseTorchFunctionMode(), profile(), forward_ad.dual_level()):
        with onlooker:
            assert calls(public, x) == 1
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    assert calls(public, x) == 1
    monkeypatch.delenv("TILESCOPE_USE_TRITON")
    assert calls(public, x) == 0
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: int(tensor.shape[0] == 32))
    assert replays._kind((x, x), {}) is not None and replays._kind((x, torch.zeros(1024)), {}) is None


def test_calls_of_the_library_s_functions_are_recognized(monkeypatch):
    monkeypatch.setattr(operators, "DIRECT", "is_cpu")
    monkeypatch.setattr(launching, "_agree", lambda *_, **__: True)
    x, other = torch.ones(8, 1024).bfloat16(), torch.ones(8, 1024).bfloat16()
    weight, bias = torch.ones(2, 1024).bfloat16()
    known = [
        lambda: library.softmax(x),
        lambda: library.layer_norm(x, (1024,), weight, bias),
        lambda: library.rms_norm(x, x.shape[-1:], weight),
        lambda: library.add_rms_norm(x, other, weight)[0],
        lambda: library.swiglu(x, other),
        lambda: library.geglu(x, other),
        lambda: library.matmul(x, other.T),
    ]
    shapes = [[call().shape for _ in range(3)][-1] for call in known]
    monkeypatch.setattr(replays, "_kind", lambda *_: pytest.fail("a signature"))
    assert [call().shape for call in known] == shapes


class Subclass(torch.Tensor):
    pass


class Look(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_memory_that_triton_asks_for_is_asked_for_at_each_launch(monkeypatch):
    monkeypatch.setattr(Launcher, "global_scratch_size", 128, raising=False)
    assert calls(Kept(two), None, torch.zeros(1024), times=4) == 4


def test_descriptors_of_launches_that_are_made_again_are_of_the_new_tensors():
    def start(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        tiles = (TensorDescriptor(tensor, [32, 64], [64, 1], [16, 64]) for tensor in (y, x))
        launches.launch(tiles_kernel, (2,), *tiles, BLOCK=16)
        return y

    kept = Kept(start)
    for _ in range(3):
        x = torch.zeros(32, 64, dtype=torch.float16)
        y = kept(x)
    _, watched, again = (made[2:4] for made in MADE)
    assert again[0].base is y and again[1].base is x
    assert [(tile.shape, tile.strides, tile.padding) for tile in watched] == [tuple(tile[1:]) for tile in again]


def test_what_triton_does_around_its_launcher_is_done_once_for_an_address(monkeypatch):
    """With Triton's own code around a launcher: the same arguments reach it, and a descriptor's map is made once."""
    nvidia = pytest.importorskip("triton.backends.nvidia.driver")
    launched: list[tuple[Any, ...]] = []
    facts = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [16, 64], "fp4_padded": False}

    class Wrapped:
        global_scratch_size = profile_scratch_size = 0
        global_scratch_align = profile_scratch_align = 1
        launch_cooperative_grid, launch_pdl = False, True
        __call__ = nvidia.CudaLauncher.__call__

        def __init__(self, src: Any, metadata: Any) -> None:
            count = sum(str(kind).startswith("tensordesc") for kind in src.signature.values())
            self.launch = nvidia.wrap_handle_tensordesc(Plain(), src.signature, [facts] * count)

    class Plain:
        def __call__(self, *args: Any) -> None:
            launched.append(args)

    made: list[tuple[Any, ...]] = []
    stub = driver.active
    monkeypatch.setattr(stub, "launcher_cls", Wrapped)
    monkeypatch.setattr(
        stub.utils, "fill_tma_descriptor", lambda *args: (made.append(args), f"map {args[0]}")[1], raising=False
    )
    monkeypatch.setattr(launchers.inspect, "isbuiltin", lambda value: isinstance(value, Plain))

    def both(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        tiles = (TensorDescriptor(tensor, [32, 64], [64, 1], [16, 64]) for tensor in (y, x))
        launches.launch(tiles_kernel, (2,), *tiles, BLOCK=16)
        launches.launch(scaled_kernel, (2,), y, x, None, (1, 64), 64, 2.0, BLOCK=32, num_warps=1)
        return x.new_empty(1)

    start = Kept(both)

    y, x, z = (torch.zeros(32, 64, dtype=torch.float16) for _ in range(3))
    start(y, x)
    launched.clear()
    start(y, x)
    searched = len(made)
    start(y, x)
    start(y, x)
    assert len(made) == searched + 2
    assert launched[2] == launched[4]
    assert launched[2][3:9] == (7, 1, False, True, None, None)
    # But for the launch's metadata and hooks, which are for whoever looks on, it is what Triton hands over.
    assert [launched[2][:10], launched[2][13:]] == [launched[0][:10], launched[0][13:]]
    assert launched[0][13:19] == (f"map {y.data_ptr()}", 32, 64, 64, 1, f"map {x.data_ptr()}")
    # Triton's launch hands descriptors and tensors over, the later ones maps and addresses.
    assert launched[3] == launched[5]
    assert [launched[3][:10], launched[3][15:]] == [launched[1][:10], launched[1][15:]]
    assert launched[3][13:15] == (y.data_ptr(), x.data_ptr())
    start(y, z)
    assert len(made) == searched + 3
    assert launched[6][18] == f"map {z.data_ptr()}"
