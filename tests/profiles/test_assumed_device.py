"""An assumed GPU: its answers, its tensors, and that nothing is left of it."""

import copy
import os
import shutil
import subprocess
import sys
import threading

import pytest
import torch
import triton
from tilescope.execution import assumed_tensors
from tilescope.execution.assumed_device import NoAnswer, assumed
from tilescope.hardware import ceilings, device, occupancy
from tilescope.table import assumptions
from torch.utils import benchmark
from triton.runtime import driver

from . import gpu_launchers

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, whose tensors stay as they are")


@pytest.fixture
def there():
    with assumed("sm_90") as found:
        yield found


def test_private_functions_of_streams_are_answered(there):
    binding = torch._C
    assert binding._cuda_getCurrentRawStream(0) == 0
    assert torch.cuda.Stream(*binding._cuda_getCurrentStream(0)).cuda_stream == 0
    assert not binding._cuda_isCurrentStreamCapturing() and binding._cuda_synchronize() is None
    with torch.accelerator.device_index(torch.ones(1, device="cuda").device.index):
        assert torch.accelerator.current_device_index() == 0
    with pytest.raises(NoAnswer, match="cuda:1"):
        binding._cuda_getCurrentRawStream(1)


def test_operator_in_place_of_pytorchs_runs_on_the_gpu_only(there):
    def doubled(x):
        return x + x

    library = torch.library.Library("aten", "IMPL")
    x = torch.ones(3, device="cuda", requires_grad=True)
    try:
        library.impl("sin", doubled, "CUDA")
        found = x.sin()
        found.sum().backward()
        assert found.tolist() == [2, 2, 2] and found.is_cuda
        assert torch.zeros(3).sin().tolist() == [0, 0, 0]
    finally:
        library._destroy()
    assert torch.equal(x.grad, torch.ones(3).cos()) and torch.equal(x.sin(), torch.ones(3).sin())


def test_factory_in_place_of_pytorchs_is_called_with_the_gpu(there):
    asked = []

    def filled(size, value=0.0, **options):
        asked.append(torch.device(options["device"]).type)
        return torch.empty(size, device=options["device"]).fill_(7)

    library = torch.library.Library("aten", "IMPL")
    try:
        for name in ("zeros", "full", "randn"):
            library.impl(name, filled, "CUDA")
        for x in (torch.zeros(3, device="cuda"), torch.full((3,), 1.0, device="cuda"), torch.randn(3, device="cuda")):
            assert x.is_cuda and x.tolist() == [7, 7, 7]
        assert asked == ["cuda"] * 3
        # The host's tensors are PyTorch's own.
        assert torch.zeros(3).tolist() == [0, 0, 0] and torch.full((3,), 1.0).tolist() == [1, 1, 1]
        assert asked == ["cuda"] * 3
    finally:
        library._destroy()


def test_operator_of_higher_order_sees_the_gpu(there):
    def within(x):
        return torch.zeros(2, device="cuda") + x

    x = torch.ones(2, device="cuda")
    assert torch.ops.higher_order.wrap(within, x).tolist() == [1, 1]


SMI = {
    "--query-gpu=name,memory.total,driver_version --format=csv,noheader": "NVIDIA H200, 134468 MiB, [N/A]\n",
    "--query-gpu=compute_cap --format=csv": "compute_cap\n9.0\n",
    "--query-gpu=memory.total,index --format=csv,nounits -i 0": "memory.total, index\n134468, 0\n",
    "--query-gpu gpu_name --format csv,noheader -l 1": "NVIDIA H200\n",
    "-L": "GPU 0: NVIDIA H200 (UUID: [N/A])\n",
}


def test_nvidia_smi_describes_the_assumed_gpu():
    before = os.environ["PATH"]
    with assumed("sm_90") as there:
        assert shutil.which("nvidia-smi")
        for options, said in SMI.items():
            assert subprocess.check_output(["nvidia-smi", *options.split()], text=True) == said
        plain = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True)
        assert "NVIDIA H200" in plain.stdout
        for refused in (["topo", "-m"], ["-i", "1"], ["-q"]):
            assert subprocess.run(["nvidia-smi", *refused], capture_output=True, check=False).returncode
        os.environ["PATH"] += ":/somewhere"
    assert os.environ["PATH"] == f"{before}:/somewhere"
    os.environ["PATH"] = before
    assert there.answers.given["nvidia-smi --query-gpu=name"] == "NVIDIA H200"
    assert {"nvidia-smi topo -m", "nvidia-smi --query-gpu=driver_version"} <= set(there.answers.refused)
    (note,) = assumptions.notes(
        {"assumed": {"capture": {**there.as_data(), "answers": {"nvidia-smi -L": "NVIDIA H200"}}}}
    )
    assert "nvidia-smi -L NVIDIA H200" in note


def test_pynvml_describes_the_assumed_gpu():
    real = pytest.importorskip("pynvml")
    with assumed("sm_90") as there:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(pynvml.nvmlDeviceGetCount() - 1)
        assert pynvml.nvmlDeviceGetName(gpu) == "NVIDIA H200" and pynvml.nvmlDeviceGetCudaComputeCapability(gpu) == (
            9,
            0,
        )
        assert pynvml.nvmlDeviceGetMemoryInfo(gpu).total == there.answers.device.memory_bytes
        for refused in (lambda: pynvml.nvmlDeviceGetTemperature(gpu, 0), lambda: pynvml.nvmlDeviceGetHandleByIndex(1)):
            with pytest.raises(real.NVMLError):
                refused()
        pynvml.nvmlShutdown()
        assert device.detect() is None
    assert there.answers.given["pynvml.nvmlDeviceGetName()"] == "NVIDIA H200"
    assert "pynvml.nvmlDeviceGetTemperature()" in there.answers.refused
    assert sys.modules["pynvml"] is real


def test_memory_in_use_is_counted_as_by_the_allocator(there):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.zeros(1000, device="cuda")
    assert torch.cuda.memory_allocated("cuda") - before == 4096
    y = x[:10] + 1
    view = x[5:]
    del x
    assert torch.cuda.memory_allocated(0) - before == 4096 + 512
    del view, y
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 4096 + 512 == torch.cuda.memory_reserved() - before
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    torch.zeros(1000)
    assert torch.cuda.max_memory_allocated() == before


def test_function_is_scripted(there):
    def doubled(x):
        return torch.ones_like(x) + torch.tensor(1.0, dtype=x.dtype)

    with pytest.warns((DeprecationWarning, FutureWarning), match="jit.script"):
        found = torch.jit.script(doubled)(torch.zeros(3, device="cuda"))
    assert found.tolist() == [2, 2, 2] and found.is_cuda


def test_generator_has_a_seed_and_an_offset(there):
    torch.cuda.manual_seed(7)
    generator = torch.cuda.default_generators[0]
    state = generator.get_state()
    assert state.view(torch.int64).tolist() == [7, 0]
    state.view(torch.int64)[1] += 4
    generator.set_state(state)
    assert (generator.get_offset(), torch.initial_seed()) == (4, 7)
    assert generator.set_offset(8).get_offset() == 8
    assert torch.randn(3, generator=generator).shape == (3,)
    state.view(torch.int64)[0] = -1
    generator.set_state(state)
    assert torch.initial_seed() == 2**64 - 1


@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
def test_device_has_the_figures_of_its_product(target):
    product, limits = ceilings.product_for(target), occupancy.limits(target)
    with assumed(target) as there:
        found = torch.cuda.get_device_properties("cuda")
        assert (found.name, found.multi_processor_count) == (product.name, product.multiprocessors)
        assert (found.total_memory, found.L2_cache_size) == (product.memory_bytes, product.l2_bytes)
        assert found.shared_memory_per_block_optin == limits.block_shared_memory
        assert found.max_threads_per_multi_processor == 32 * limits.warps
        of_a_tensor = torch.cuda.device_of(torch.ones(1, device="cuda"))
        assert torch.cuda.get_device_properties(of_a_tensor).name == product.name
        assert torch.cuda.get_device_capability() == (found.major, found.minor)
        assert f"sm_{found.major}{found.minor}" == target
        assert driver.active.utils.get_device_properties(0)["max_shared_mem"] == limits.block_shared_memory
        assert f"sm_{driver.active.get_current_target().arch}" == target
    assert there.as_data()["sources"][0] == product.document


REFUSED = {
    "get_device_properties().clock_rate": lambda: torch.cuda.get_device_properties(0).clock_rate,
    "['mem_clock_rate']": triton.testing.get_dram_gbps,
    "torch.cuda.memory_stats": lambda: torch.cuda.memory_stats("cuda"),
    "cuda:1": lambda: torch.cuda.get_device_properties(1),
}


@pytest.mark.parametrize("named", REFUSED)
def test_query_without_an_answer_is_refused_by_name(there, named):
    with pytest.raises(NoAnswer) as refused:
        REFUSED[named]()
    assert named in str(refused.value) and "\n" not in str(refused.value)
    assert any(named in query for query in there.as_data()["refused"])
    assert getattr(torch.cuda.get_device_properties(0), "clock_rate", 7) == 7
    entries = driver.active.utils.get_device_properties(0)
    assert entries.get("mem_bus_width") is None and "warpSize" in entries and len(entries) == len(list(entries))
    assert "assumed" in repr(torch.cuda.get_device_properties(0))


def test_launch_that_is_not_caught_is_an_error(there):
    assert driver.active.get_device_capability() == (9, 0)
    with pytest.raises(AttributeError, match=r"utils.fill_tma_descriptor needs a GPU, and sm_90 is not there"):
        driver.active.utils.fill_tma_descriptor(0)
    with pytest.raises(AttributeError, match="sm_90 is not there: catch the launch"):
        gpu_launchers.by_properties(torch.ones(8, device="cuda"))


MADE = {
    "empty": lambda: torch.empty(3, device="cuda"),
    "randn": lambda: torch.randn(3, device="cuda:0", generator=torch.Generator("cuda").manual_seed(1)),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "as_tensor": lambda: torch.as_tensor([1.0], device=torch.device("cuda")),
    "cuda": lambda: torch.ones(3).cuda(),
    "to": lambda: torch.ones(3).to("cuda", torch.half, non_blocking=True),
    "to_another": lambda: torch.ones(3).to(torch.ones(3, device="cuda")),
    "view": lambda: torch.ones(4, device="cuda")[1:].view(3, 1),
    "computed": lambda: torch.ones(3, device="cuda") * torch.ones(3, device="cuda") + 1,
    "like": lambda: torch.zeros_like(torch.ones(3, device="cuda")),
    "new": lambda: torch.ones(3, device="cuda").new_tensor([1]),
    "parameter": lambda: torch.nn.Linear(3, 3).cuda().weight,
    "module": lambda: copy.deepcopy(torch.nn.Linear(3, 3).to("cuda")).weight,
    "copied": lambda: copy.deepcopy(torch.ones(3, device="cuda")),
    "by_the_compiler": lambda: torch._C._dynamo.guards._empty_strided_cuda((3, 1), (1, 3), torch.half),
    "pinned": lambda: torch.ones(3).pin_memory().to("cuda"),
}


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_tensor_on_the_gpu_claims_to_be_there(place):
    with assumed("sm_90", place):
        for name, make in MADE.items():
            tensor = make()
            assert tensor.is_cuda and not tensor.is_cpu and tensor.device == torch.device("cuda", 0), name
            assert tensor.get_device() == 0 and tensor.cuda() is tensor and tensor.to(tensor.device) is tensor, name
        with torch.device("cuda"):
            assert torch.arange(3).is_cuda and torch.tensor(3).is_cuda
    assert tensor.device.type == place


def test_tensor_of_a_subclass_is_made_of_a_tensor(there):
    class Packed(torch.Tensor):
        pass

    x = torch.ones(3, device="cuda", requires_grad=True)
    packed = Packed(x)
    (packed * 2).sum().backward()
    assert type(packed) is Packed and packed.is_cuda and packed.data_ptr() == x.data_ptr()
    assert x.grad.tolist() == [2, 2, 2] and type(torch.Tensor(x)) is torch.Tensor
    assert Packed(2, 3).shape == (2, 3) and torch.Tensor([1, 2]).tolist() == [1, 2]


def test_tensor_of_the_host_stays_there(there):
    host = torch.ones(3)
    moved = host.cuda()
    back = moved.cpu()
    back.zero_()
    assert not host.is_cuda and not back.is_cuda and not (back + 1).is_cuda
    assert moved.tolist() == [1, 1, 1] and host.cpu() is host
    assert torch.zeros_like(moved, device="cpu").device.type == "cpu"


def test_reachable_tensors_are_on_the_gpu_or_pinned(there):
    host, device = torch.ones(3), torch.ones(3, device="cuda")
    capsule = torch.utils.dlpack.to_dlpack(device)
    for shared in (torch.from_dlpack(device), torch.utils.dlpack.from_dlpack(capsule), device.data[1:]):
        assert shared.is_cuda and assumed_tensors.reachable(shared)
    for pinned in (torch.ones(3, pin_memory=True), host.pin_memory(), host.pin_memory()[1:]):
        assert not pinned.is_cuda and assumed_tensors.reachable(pinned)
    assert not torch.from_dlpack(host).is_cuda
    assert not any(map(assumed_tensors.reachable, (host, host[1:], device.cpu(), torch.from_dlpack(host))))
    assert assumed_tensors.reachable(torch.empty(0))


def test_autocast_casts_and_ends(there):
    layer, x = torch.nn.Linear(3, 3, device="cuda"), torch.ones(2, 3, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda") and layer(x).dtype == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert layer(x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda") and not torch.is_autocast_enabled("cpu")


def test_streams_events_and_contexts_do_nothing(there):
    stream = torch.cuda.Stream()
    with torch.cuda.device(0), torch.cuda.stream(stream), stream:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        stream.wait_event(event)
        torch.cuda.current_stream().wait_stream(stream)
    assert stream.record_event().query()
    torch.cuda.synchronize()
    torch.cuda.manual_seed_all(3)
    torch.ones(3, device="cuda").record_stream(stream)
    assert event.query() and torch.cuda.current_device() == 0 and torch.cuda.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.get_device_module() is torch.cuda
    cuda = torch.cuda
    for kind in (cuda.CUDAGraph, cuda.Stream, cuda.Event, torch.Stream, torch.Event, torch.Generator, cuda.device):
        assert isinstance(kind, type) and (kind | None)  # annotations name them
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator("cuda").device == torch.device("cuda", 0) and torch.Generator().device.type == "cpu"


def test_compiled_function_runs_uncompiled():
    """It would refuse a whole graph where somebody looks on, and compile it for the CPU elsewhere."""

    def doubled(x):
        ran.append(torch.compiler.is_compiling())
        return x * 2

    ran: list[bool] = []
    before = torch.compile(doubled, fullgraph=True)
    with assumed("sm_90") as there, there.without_compiler():
        meanwhile = torch.compile(doubled, fullgraph=True)
        for compiled in (before, meanwhile):
            assert compiled(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
    assert ran == [False, False] and there.uncompiled
    torch.compile(doubled, fullgraph=True, backend="eager")(torch.ones(3))
    assert ran == [False, False, True]


def test_assumed_leaves_nothing_replaced():
    owners = (torch, torch.cuda, torch.cuda.nvtx, torch.accelerator, torch.Tensor, torch.autocast, torch.version)
    owners += (torch.backends.cuda, threading.Thread, torch._C, triton.testing, benchmark.Timer)
    torch.empty(0).is_pinned()  # PyTorch imports what it needs for itself.
    before = [dict(vars(owner)) for owner in owners]
    active = driver._active
    with pytest.raises(ZeroDivisionError), assumed("sm_90"):
        asked, moved = torch.cuda.is_available, torch.Tensor.to
        assert asked() and moved(torch.ones(1), "cuda").is_cuda
        1 / 0  # noqa: B018
    for owner, was in zip(owners, before, strict=True):
        assert {name for name, value in vars(owner).items() if was.get(name) is not value} <= {"_pin_memory_utils"}
        assert not was.keys() - vars(owner).keys()
    assert driver._active is active and not asked() and not torch.cuda.is_available()
    assert moved(torch.ones(1), torch.half).dtype == torch.half
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        torch.ones(1, device="cuda")


def test_assumed_nests_for_the_same_target_only(there):
    with assumed("sm_90") as within:
        assert within is there
    assert torch.ones(1, device="cuda").is_cuda
    with pytest.raises(RuntimeError, match="sm_90 on cpu is assumed already"), assumed("sm_80"):
        pass
    with pytest.raises(RuntimeError, match="end that before"), assumed("sm_90", "meta"):
        pass


def test_assumed_unknown_target_or_place_is_refused():
    with pytest.raises(ValueError, match="unknown target 'sm_37': use one of sm_80"), assumed("sm_37"):
        pass
    with pytest.raises(ValueError, match="use cpu or meta"), assumed("sm_90", "disk"):
        pass
    assert not torch.cuda.is_available()
