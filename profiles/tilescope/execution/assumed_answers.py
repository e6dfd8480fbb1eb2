"""Answers to queries about an assumed GPU, in place of PyTorch's and Triton's own. Each answer is kept.

Answers come from documents only. Nothing is timed: what would be timed is called once, and its time is NaN. Imports torch and triton:
worker-side only.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from triton import testing

from tilescope.execution.assumed_tensors import memory
from tilescope.hardware import ceilings, occupancy
from tilescope.hardware.device import detect, for_target

#: Bytes of shared memory of a block that does not opt into more (CUDA C++ Programming Guide).
STATIC_SHARED_MEMORY = 48 * occupancy.KIBI
#: Owner, name and new value of an attribute.
Replacement = tuple[Any, str, Any]
_GUIDE = "CUDA C++ Programming Guide, Technical Specifications per Compute Capability"


class NoAnswer(RuntimeError):
    """A query that no document answers. The message is one line and names the query."""


class NoAttribute(NoAnswer, AttributeError):
    """An unknown property of the device. ``getattr`` with a default and ``hasattr`` work."""


class NoKey(NoAnswer, KeyError):
    """An unknown entry of Triton's properties. ``get`` and ``in`` work."""

    __str__ = RuntimeError.__str__


class Answers:
    """The specification of a target, and the queries so far.

    ``given`` maps each answered query to its value as plain data; ``refused`` lists the others. ``untimed`` has the names of
    functions that gave NaN for a time, and ``replayed`` says whether a CUDA graph was replayed. A real GPU stands for its own
    target. Raises ValueError for any other target without a listed product.
    """

    def __init__(self, target: str, toolkit: str = "") -> None:
        here = detect()
        self.device = here if here and here.target == target else for_target(target)
        #: Version of CUDA's compiler, as ``torch.version.cuda`` reports it; may be empty.
        self.toolkit = toolkit
        known, limits = ceilings.product(self.device.name), occupancy.limits(target)
        self.sources = [known.document if known else "the NVIDIA driver here", _GUIDE]
        digits = target.removeprefix("sm_")
        self.capability = (int(digits[:-1]), int(digits[-1]))
        self.given: dict[str, Any] = {}
        self.refused: list[str] = []
        self.untimed: dict[str, None] = {}
        self.replayed = False
        self._lock = threading.Lock()
        #: Properties by PyTorch's names.
        self.properties: dict[str, Any] = {
            "name": self.device.name,
            "major": self.capability[0],
            "minor": self.capability[1],
            "multi_processor_count": self.device.multiprocessors,
            "total_memory": self.device.memory_bytes,
            "L2_cache_size": self.device.l2_bytes,
            "warp_size": occupancy.WARP_THREADS,
            "max_threads_per_block": occupancy.BLOCK_THREADS,
            "max_threads_per_multi_processor": limits.warps * occupancy.WARP_THREADS,
            "regs_per_multiprocessor": occupancy.REGISTERS,
            "shared_memory_per_block": STATIC_SHARED_MEMORY,
            "shared_memory_per_block_optin": limits.block_shared_memory,
            "shared_memory_per_multiprocessor": limits.shared_memory,
            "is_integrated": 0,
            "is_multi_gpu_board": 0,
        }
        if not self.device.l2_bytes:  # an unlisted product
            del self.properties["L2_cache_size"]
        #: Properties by Triton's names.
        self.entries: dict[str, Any] = {
            "max_shared_mem": limits.block_shared_memory,
            "max_num_regs": occupancy.REGISTERS,
            "multiprocessor_count": self.device.multiprocessors,
            "warpSize": occupancy.WARP_THREADS,
        }

    def tell(self, query: str, value: Any) -> Any:
        with self._lock:
            self.given[query] = _plain(value)
        return value

    def refuse(self, query: str, kind: type[NoAnswer] = NoAnswer) -> NoAnswer:
        with self._lock:
            if query not in self.refused:
                self.refused.append(query)
        return kind(f"{query} has no answer: {self.device.name} is assumed, not there, and no document says")

    def not_timed(self, query: str) -> float:
        """NaN as the answer to ``query``, which asks for a time."""
        with self._lock:
            self.untimed[query] = None
        return NotTimed()

    def as_data(self) -> dict[str, Any]:
        """Plain data: ``target``, ``name``, ``toolkit``, ``sources`` (documents), ``answers`` by query, ``refused`` queries."""
        with self._lock:
            return {
                "toolkit": self.toolkit,
                "target": self.device.target,
                "name": self.device.name,
                "sources": list(self.sources),
                "answers": dict(sorted(self.given.items())),
                "refused": list(self.refused),
            }

    def index(self, device: Any = None) -> int:
        """The number of the device, always 0. Raises NoAnswer for another device."""
        if isinstance(device, torch.cuda.device):  # as torch.cuda.device_of makes one
            device = device.idx
        number = device if isinstance(device, int) else None if device is None else torch.device(device).index
        if number not in (None, 0):
            self.refuse(f"cuda:{number}")
            raise NoAnswer(
                f"cuda:{number} is an invalid device: one GPU is assumed: use cuda:0, or run the script where there are more"
            )
        return 0


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


class Properties:
    """Stands for the result of ``torch.cuda.get_device_properties``. Each property that is read is kept."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        query = f"torch.cuda.get_device_properties().{name}"
        if name not in self._answers.properties:
            raise self._answers.refuse(query, NoAttribute)
        return self._answers.tell(query, self._answers.properties[name])

    def __repr__(self) -> str:
        return f"_CudaDeviceProperties(assumed, {self._answers.properties})"


class Entries(collections.UserDict[str, Any]):
    """Stands for the result of ``driver.active.utils.get_device_properties``. Each entry that is read is kept."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers.entries)
        self._answers = answers

    def __getitem__(self, name: str) -> Any:
        query = f"triton.runtime.driver.active.utils.get_device_properties()[{name!r}]"
        if name not in self.data:
            raise self._answers.refuse(query, NoKey)
        return self._answers.tell(query, self.data[name])


class _Idle:
    """A stream on which nothing runs, or an event that has happened."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    def synchronize(self, _other: Any = None) -> None:
        """Returns at once, as there is nothing to wait for."""

    wait_stream = wait_event = record = wait = synchronize

    def query(self) -> bool:
        return True


class Stream(_Idle):
    cuda_stream = stream_id = priority = device_index = 0
    device_type = 1
    device = torch.device("cuda", 0)

    def record_event(self, event: Any = None) -> Any:
        return event or torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_error: Any) -> None:
        pass


class Event(_Idle):
    """An event that has happened, at no known time."""

    answers: Answers

    def elapsed_time(self, end: Any) -> float:
        return self.answers.not_timed("torch.cuda.Event.elapsed_time")


class Graph:
    """A CUDA graph. Launches are made when they are captured, and a replay makes none."""

    answers: Answers

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    def capture_begin(self, *_args: Any, **_options: Any) -> None:
        """Returns at once: launches go on as before."""

    capture_end = instantiate = reset = enable_debug_mode = debug_dump = capture_begin

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def replay(self) -> None:
        self.answers.replayed = True


class Generator(torch._C.Generator):
    """A GPU's generator for libraries that draw with Triton: the host's seed, and an offset that they read and advance."""

    def __new__(cls) -> Generator:
        made: Generator = super().__new__(cls, device="cpu")  # type: ignore[call-arg]
        return made

    def __init__(self) -> None:
        super().manual_seed(torch.initial_seed())
        self._offset = 0

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> Generator:
        self._offset = int(offset)
        return self

    def get_state(self) -> torch.Tensor:
        """Seed and offset, as 16 bytes."""
        return torch.tensor([_signed(self.initial_seed()), self._offset], dtype=torch.int64).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> Generator:
        seed, self._offset = state.cpu().view(torch.int64).tolist()
        if seed != _signed(self.initial_seed()):
            torch.default_generator.manual_seed(seed)
        return self


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def answers_of(answers: Answers) -> Iterator[Replacement]:
    """Yields (owner, name, value) of replaced queries about the device, its availability, streams, memory and randomness."""
    cuda, say = torch.cuda, functools.partial(_saying, answers)
    total, properties = answers.device.memory_bytes, Properties(answers)
    yield say("get_device_name", lambda device=None: answers.device.name)
    yield say("get_device_capability", lambda device=None: answers.capability)
    for name in ("get_device_properties", "_get_device_properties"):
        if hasattr(cuda, name):
            yield cuda, name, lambda device=None: answers.index(device) or properties
    yield say("is_bf16_supported", lambda *_, **__: answers.capability >= (8, 0))
    yield say("is_tf32_supported", lambda: answers.capability >= (8, 0))
    yield say("get_arch_list", lambda: [answers.device.target])
    yield say("mem_get_info", lambda device=None: (total, total))
    yield say("is_available", lambda: True)
    yield say("device_count", lambda: 1)
    yield say("current_device", lambda: 0)
    yield cuda, "is_initialized", lambda: True
    yield cuda, "set_device", lambda device: answers.index(device) and None
    for name in ("_exchange_device", "_maybe_exchange_device"):
        yield cuda, name, lambda index: answers.index(max(index, 0))
    nothing = "_lazy_init init synchronize empty_cache ipc_collect set_stream reset_accumulated_memory_stats"
    for name in nothing.split():
        yield cuda, name, lambda *_, **__: None
    for name, answer in memory.answers().items():
        yield say(name, answer)
    yield cuda, "reset_peak_memory_stats", lambda device=None: memory.reset_peak()
    for name in ("memory_stats", "clock_rate", "temperature", "power_draw", "utilization", "memory_usage"):
        yield cuda, name, functools.partial(_refusing, answers, f"torch.cuda.{name}")
    yield from _streams(answers)
    yield from do_bench(answers)
    yield from _randomness()
    yield torch.backends.cuda, "is_built", lambda: True
    if torch.version.cuda is None:
        yield torch.version, "cuda", answers.toolkit
    here = torch.device("cuda")
    values = {
        "is_available": True, "device_count": 1, "current_accelerator": here, "current_device_index": 0,
        "current_device_idx": 0, "synchronize": None, "set_device_index": None, "set_device_idx": None,
        "empty_cache": None,
    }  # fmt: skip
    for name, value in values.items():
        if hasattr(torch.accelerator, name):
            yield torch.accelerator, name, lambda *_, value=value, **__: value
    yield torch._C, "_get_accelerator", lambda *_: here
    # The context manager of a device calls these.
    for name in ("_accelerator_exchangeDevice", "_accelerator_maybeExchangeDevice"):
        yield torch._C, name, lambda index: answers.index(max(index, 0))


def _streams(answers: Answers) -> Iterator[Replacement]:
    cuda, stream = torch.cuda, Stream()
    for owner in (cuda, torch):
        yield owner, "Stream", Stream
        yield owner, "Event", type("Event", (Event,), {"answers": answers})
    for name in ("current_stream", "default_stream"):
        yield cuda, name, lambda device=None: stream
    yield cuda, "stream", lambda stream: contextlib.nullcontext(stream)  # noqa: PLW0108 - functions only are guarded
    yield cuda, "is_current_stream_capturing", lambda: False
    # Private functions that launchers call. A build without CUDA lacks them.
    yield torch._C, "_cuda_getCurrentRawStream", lambda device=0: answers.index(device)
    yield torch._C, "_cuda_getCurrentStream", lambda device=0: (0, answers.index(device), Stream.device_type)
    yield torch._C, "_cuda_isCurrentStreamCapturing", lambda: False
    for owner in (cuda, cuda.graphs):
        # A type, because annotations name it.
        yield owner, "CUDAGraph", type("CUDAGraph", (Graph,), {"answers": answers})
        yield owner, "graph_pool_handle", lambda: (0, 0)
    yield cuda.graph, "default_capture_stream", stream
    for name in ("_host_emptyCache", "_cuda_synchronize"):
        yield torch._C, name, lambda: None
    for name in ("range_push", "range_pop", "mark"):
        yield cuda.nvtx, name, lambda *_, **__: 0


def _randomness() -> Iterator[Replacement]:
    """Replacements that let the host's generator draw."""
    for name in ("manual_seed", "manual_seed_all"):
        yield torch.cuda, name, lambda seed: torch.default_generator.manual_seed(int(seed)) and None
    yield torch.cuda, "default_generators", (Generator(),)
    yield torch.cuda, "initial_seed", torch.initial_seed
    yield torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state()
    yield torch.cuda, "set_rng_state", lambda state, device=None: torch.set_rng_state(state)


def _refusing(answers: Answers, query: str, *_args: Any, **_options: Any) -> Any:
    raise answers.refuse(query)


def _saying(answers: Answers, name: str, answer: Callable[..., Any]) -> Replacement:
    """Replaces ``torch.cuda``'s function of that name. Its value is kept."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if name.startswith(("get_device", "mem_")):
            answers.index(*args, **kwargs)
        return answers.tell(f"torch.cuda.{name}()", answer(*args, **kwargs))

    return torch.cuda, name, call


class NotTimed(float):
    """NaN in place of a time. Numbers of repetitions that are computed from it (``int(100 / time)``) are 0."""

    def __new__(cls) -> NotTimed:
        return super().__new__(cls, math.nan)

    def _itself(self, *_: Any) -> NotTimed:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _itself
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __neg__ = __abs__ = _itself
    __mod__ = __rmod__ = __pow__ = __rpow__ = _itself

    def __int__(self) -> int:
        return 0

    __trunc__ = __floor__ = __ceil__ = __int__

    def __round__(self, *digits: Any) -> Any:
        return self if digits else 0


def do_bench(answers: Answers) -> Iterator[tuple[Any, str, Any]]:
    for name in ("do_bench", "do_bench_cudagraph"):
        asked = inspect.signature(getattr(testing, name))
        yield testing, name, functools.partial(_do_bench, answers, f"triton.testing.{name}", asked)
    yield testing.Mark, "run", functools.partial(_report, testing.Mark.run)


def _do_bench(answers: Answers, query: str, asked: inspect.Signature, *args: Any, **kwargs: Any) -> Any:
    """Calls the function once. Returns NaN in the form in which Triton's function returns times."""
    given = asked.bind(*args, **kwargs).arguments
    given["fn"]()
    time, quantiles = answers.not_timed(query), given.get("quantiles")
    if quantiles:
        return [time] * len(quantiles) if len(quantiles) > 1 else time
    return [time] if given.get("return_mode") == "all" else time


def _report(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``Mark.run`` of ``perf_report``, which neither draws nor writes: there are no times, and matplotlib may be absent."""
    given = inspect.signature(original).bind(*args, **kwargs)
    given.arguments |= {"show_plots": False, "save_path": ""}
    drawing = ("matplotlib", "matplotlib.pyplot")
    known = {name: sys.modules[name] for name in drawing if name in sys.modules}
    sys.modules.update(dict.fromkeys(drawing, mock.MagicMock()))
    try:
        return original(*given.args, **given.kwargs)
    finally:
        # mock.patch.dict would also forget the modules that the benchmark imported, and torch's cannot be imported twice.
        for name in drawing:
            del sys.modules[name]
        sys.modules.update(known)


def print_performance(answers: Answers, utils: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the replacement of the benchmark function with which files of torch.compile end."""

    def once(model: Any, example_inputs: Any = (), *_: Any, **__: Any) -> float:
        model(*example_inputs)
        return answers.not_timed("torch._inductor.utils.print_performance")

    yield utils, "print_performance", once


def timers(answers: Answers) -> Iterator[tuple[Any, str, Any]]:
    """Yields replacements of the methods of ``torch.utils.benchmark.Timer``, which would time the CPU."""
    from torch.utils import benchmark  # noqa: PLC0415 - takes a third of a second: only once a program has imported it

    def measure(timer: Any, *_: Any, **__: Any) -> benchmark.Measurement:
        timer._timer.timeit(1)
        time = answers.not_timed("torch.utils.benchmark.Timer")
        return benchmark.Measurement(1, [time], timer._task_spec)

    for name in ("timeit", "blocked_autorange", "adaptive_autorange"):
        yield benchmark.Timer, name, measure
