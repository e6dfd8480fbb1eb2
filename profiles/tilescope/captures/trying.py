"""Applies a suggestion to the running program without an edit, compares the results with the plain step's, and undoes it. Imports torch.

A step is compared by calling its outermost modules again with the arguments that the program gave them, or the step itself where it is a
function. Parameters, buffers, the optimizers' state and the random numbers are as before afterwards.
"""

from __future__ import annotations

import contextlib
import math
import random
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree

from tilescope.captures.step_boundaries import Boundaries
from tilescope.captures.step_passes import WARMUP, alone, timed
from tilescope.table import units
from tilescope.table.step import Tried

#: Relative differences of results that a change may cause, by the least precise dtype of the step; those of gradients may be larger.
_LIMITS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_OF_GRADIENTS = 3.0
#: The largest limit, however far rounding grows, and the rounding of TF32.
_MOST, _TF32 = 0.2, 2**-10
#: The library's kernels, by the attributes of PyTorch that they can stand for.
_FUNCTIONS: dict[str, tuple[tuple[Any, str], ...]] = {
    "layer_norm": ((nn.functional, "layer_norm"), (torch, "layer_norm")),
    "rms_norm": ((nn.functional, "rms_norm"), (torch, "rms_norm")),
    "softmax": ((nn.functional, "softmax"), (torch, "softmax")),
    "gelu": ((nn.functional, "gelu"),),
    "cross_entropy": ((nn.functional, "cross_entropy"),),
    "dropout": ((nn.functional, "dropout"),),
}
#: Methods by which a tensor's value comes to the CPU, and the reads of a line from one value to the next.
_VALUES, _AGAIN = ("item", "tolist", "__float__", "__int__", "__bool__"), 100

Undo = contextlib.ExitStack


class CannotTryError(Exception):
    """The change cannot be made without an edit. The message says why."""


def compiled(program: Boundaries, place: str, undo: Undo, **options: Any) -> None:
    """Compiles the module of that path, like ``Net.encoder``, or the outermost ones."""
    roots = [module for module in program.modules.values() if any(True for _ in module.parameters())]
    found = [
        module for root in roots for path, module in root.named_modules(prefix=type(root).__name__) if path == place
    ]
    if not counters["frames"]:
        # The program has no compiled code of its own, which a reset would drop.
        undo.callback(torch.compiler.reset)
        undo.callback(counters.clear)
    for module in found or roots:
        _put(undo, vars(module), "forward", torch.compile(getattr(module, "_orig_mod", module.forward), **options))
    if not (found or roots):
        raise CannotTryError("the step calls no module with parameters")


def _put(undo: Undo, into: dict[str, Any], name: str, value: Any) -> None:
    """Sets an entry until the change is undone; the other entries keep what happens to them."""
    undo.callback(into.__setitem__, name, into[name]) if name in into else undo.callback(into.pop, name, None)
    into[name] = value


def graphed(program: Boundaries, place: str, undo: Undo) -> None:
    """Captures the step in a CUDA graph: the function, or an inference's module. A training loop is compiled with graphs."""
    if program.step is not None:
        for optimizer in program.optimizers.values():
            _set(undo, optimizer, capturable=True)
        with _unchanged(program):
            replay, _ = _captured(program.step)
        undo.enter_context(mock.patch.object(program, "step", replay))
        return
    if program.optimizers:
        compiled(program, "", undo, mode="reduce-overhead")
        return
    if len(program.calls) != 1:
        raise CannotTryError("the step calls several modules: write it as a function step()")
    ((key, arguments),) = program.calls.items()
    module = program.modules[key]
    # Each replay overwrites these, which must not be the caller's.
    args, kwargs = _copied(arguments)
    given = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    plain = module.forward
    with _unchanged(program):
        replay, result = _captured(lambda: plain(*args, **kwargs))

    def forward(*args: Any, **kwargs: Any) -> Any:
        new = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if [one.shape for one in given] != [one.shape for one in new]:
            return plain(*args, **kwargs)
        for old, one in zip(given, new, strict=True):
            old.copy_(one)
        replay()
        return result

    _put(undo, vars(module), "forward", forward)


def _captured(call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    """A function that replays the call from a CUDA graph, and the call's result, which each replay overwrites."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = call()
    except RuntimeError as error:
        torch.cuda.synchronize()
        raise CannotTryError(f"the step cannot be captured: {_line(error)}") from error

    def replay() -> Any:
        graph.replay()
        return result

    return replay, result


def _set(undo: Undo, optimizer: torch.optim.Optimizer, **options: bool) -> None:
    """Sets options of an optimizer that has them, with its counts of steps on the GPU."""
    for group in optimizer.param_groups:
        for name in options.keys() & group.keys():
            _put(undo, group, name, options[name])

    def counts(device: torch.device | None) -> None:
        for parameter, state in optimizer.state.items():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(device or parameter.device)

    was = next(
        (one["step"].device for one in optimizer.state.values() if isinstance(one.get("step"), torch.Tensor)), None
    )
    undo.callback(counts, was)
    counts(None)


def fused(program: Boundaries, place: str, undo: Undo) -> None:
    """Gives the optimizers ``fused=True``."""
    for optimizer in program.optimizers.values():
        _set(undo, optimizer, fused=True, foreach=False)


def rounded(program: Boundaries, place: str, undo: Undo) -> None:
    """Lets fp32 products use TF32."""
    undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")
    undo.enter_context(
        torch.backends.cudnn.flags(enabled=True, benchmark=torch.backends.cudnn.benchmark, allow_tf32=True)
    )


def by_library(program: Boundaries, place: str, undo: Undo) -> None:
    """Replaces an operator's functions by the library's kernel, for the arguments that it takes."""
    import tilescope_kernels  # noqa: PLC0415 - it imports triton

    if place not in _FUNCTIONS:
        raise CannotTryError(f"no function of PyTorch stands for {place} alone")
    kernel = getattr(tilescope_kernels, place)

    def instead(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # PyTorch's arguments that the kernel lacks, with their usual values.
            given = {
                name: value
                for name, value in kwargs.items()
                if name not in ("dtype", "_stacklevel", "inplace") or value
            }
            try:
                return kernel(*args, **given)
            except (TypeError, ValueError):
                return plain(*args, **kwargs)

        return call

    for owner, name in _FUNCTIONS[place]:
        undo.enter_context(mock.patch.object(owner, name, instead(getattr(owner, name))))


def without_stops(program: Boundaries, place: str, undo: Undo) -> None:
    """Gives the CPU an older value that each line read from a tensor, instead of waiting for the GPU."""
    known: dict[tuple[str, int, str], Any] = {}
    reads = Counter[tuple[str, int, str]]()

    def instead(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def value(tensor: torch.Tensor, *args: Any) -> Any:
            if not tensor.is_cuda:
                return plain(tensor, *args)
            caller = traceback.extract_stack(limit=2)[0]
            key = caller.filename, caller.lineno or 0, name
            # A loop that ends by such a value sees it change.
            if reads[key] % _AGAIN == 0:
                known[key] = plain(tensor, *args)
            reads[key] += 1
            return known[key]

        return value

    for name in _VALUES:
        undo.enter_context(mock.patch.object(torch.Tensor, name, instead(name, getattr(torch.Tensor, name))))


CHANGES: dict[str, Callable[[Boundaries, str, Undo], None]] = {
    "graph": graphed, "stop": without_stops, "compile": compiled, "library": by_library,
    "optimizer": fused, "dtype": rounded,
}  # fmt: skip


def tried(
    kind: str, place: str, program: Boundaries, *, time: Callable[[], Generator[None, None, float]] = timed
) -> Generator[None, None, Tried]:
    """Tries the change of that kind at a place. Each ``yield`` is a step of the program."""
    if kind not in CHANGES:
        return Tried(why="it needs an edit of the code")
    with program.recorded():
        # A step that begins with a call of its module records the next one.
        yield
        yield
    if program.step is None and not program.calls:
        return Tried(why="the step's modules were not called again")
    with alone():
        plain = yield from time()
    undo = Undo()
    try:
        with undo:
            torch.cuda.synchronize()
            # Optimizers that divide by a gradient's size update by its sign, which rounding may turn.
            updates = kind == "optimizer" or (kind == "graph" and program.step is not None)
            before, other = (_results(program, updates, seed=seed) for seed in range(2))
            if draws := _difference(before, other)[0] > before.limit:
                before = _results(program, updates, evaluating=True)
            # Rounding grows through a deep model: parameters that are rounded otherwise show how far.
            rounding = max(_rounding(program), _TF32 if kind == "dtype" else 0.0)
            other = _results(program, updates, evaluating=draws, rounding=rounding)
            limit = max(before.limit, min(2 * _difference(before, other)[0], _MOST))
            skipped = counters["inductor"]["cudagraph_skips"]
            CHANGES[kind](program, place, undo)
            difference, where = _difference(before, _results(program, updates, evaluating=draws))
            # The timed steps have the memory that the program has.
            del before, other
            for _ in range(WARMUP):
                yield
            with alone():
                # As often as the plain step, whose shortest time counts.
                changed = min((yield from time()), (yield from time()))
                kernels = dict[str, float]()
                with contextlib.suppress(RuntimeError):  # the program runs a profiler of its own
                    kernels = yield from _kernels()
            left_out = counters["inductor"]["cudagraph_skips"] - skipped
        # A program becomes faster after its first steps: what only time won is not the change's.
        for _ in range(WARMUP):
            yield
        with alone():
            plain = min(plain, (yield from time()))
        why = f"PyTorch ran {units.several(left_out, 'compiled graph')} outside of CUDA graphs" if left_out > 0 else ""
        return Tried(plain, changed, difference, limit, why, where=where, kernels=kernels)
    except Exception as error:
        torch.cuda.synchronize()
        return Tried(plain, why=_line(error))


def _kernels() -> Generator[None, None, dict[str, float]]:
    """The GPU's seconds for a step, by the names of kernels, copies and fills; empty without a GPU."""
    with profile(activities=[ProfilerActivity.CUDA] if torch.cuda.is_available() else None) as profiler:
        for _ in range(WARMUP):
            yield
        torch.cuda.synchronize()
    spent = {one.key: one.self_device_time_total * 1e-6 / WARMUP for one in profiler.key_averages()}
    return {name: seconds for name, seconds in spent.items() if seconds}


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@dataclass
class _Results:
    """What a step made, by its name: floating-point outputs, gradients or the parameters' updates. ``limit`` is the largest difference that its dtypes allow."""

    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    limit: float


def _results(
    program: Boundaries, updates: bool, *, evaluating: bool = False, seed: int = 0, rounding: float = 0.0
) -> _Results:
    """Makes the step again and undoes it. ``updates`` compares the parameters' updates, for changes that leave no gradients.

    ``evaluating`` calls modules as at inference, where a step draws random numbers;
    parameters are first changed by about the share ``rounding``.
    """
    modules = list(program.modules.values())
    parameters = _parameters(program)
    with _unchanged(program) as before, contextlib.ExitStack() as stack:
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in parameters if rounding else ():
                parameter.mul_(1 + rounding * torch.randn_like(parameter))
        start = [one.detach().clone() for one in parameters] if rounding else before
        for one in (one for module in modules for one in module.modules() if evaluating and one.training):
            stack.callback(setattr, one, "training", True)
            one.training = False
        found = [program.step()] if program.step is not None else list(_called_again(program))
        outputs = {
            f"output {number}": one.detach().clone()
            for number, one in enumerate(_tensors(found), 1)
            if one.is_floating_point()
        }
        named = [(name, one, old) for (one, name), old in zip(parameters.items(), start, strict=True)]
        gradients = {
            f"gradient of {name}": one.grad.detach().clone()
            for name, one, _ in named
            if one.grad is not None and not updates
        }
        if not gradients:
            gradients = {f"update of {name}": one.detach() - old for name, one, old in named}
        dtypes = {one.dtype for one in outputs.values()} | _dtypes(program)
        return _Results(outputs, gradients, max((_LIMITS.get(dtype, 0.0) for dtype in dtypes), default=0.0))


def _dtypes(program: Boundaries) -> set[torch.dtype]:
    """The dtypes in which the step computes: those of its parameters and of autocast."""
    return {one.dtype for one in _parameters(program)} | {dtype for on, dtype in program.autocast.values() if on}


def _rounding(program: Boundaries) -> float:
    """The relative rounding of the step's least precise dtype."""
    return max((torch.finfo(dtype).eps for dtype in _dtypes(program) if dtype.is_floating_point), default=0.0)


def _tensors(found: Any) -> list[torch.Tensor]:
    """The tensors in results, also in mappings that PyTorch's trees do not know."""
    if isinstance(found, dict):
        return _tensors(list(found.values()))
    if isinstance(found, list | tuple):
        return [tensor for one in found for tensor in _tensors(one)]
    return [found] if isinstance(found, torch.Tensor) else []


def _called_again(program: Boundaries) -> Iterator[Any]:
    for key, module in program.modules.items():
        if key not in program.calls:
            continue
        # A module may change its arguments, which the program still needs.
        args, kwargs = _copied(program.calls[key])
        on, dtype = program.autocast[key]
        with torch.set_grad_enabled(bool(program.optimizers)), torch.autocast("cuda", dtype, enabled=on):
            found = module(*args, **kwargs)
            losses = [one.float().square().mean() for one in _tensors(found) if one.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        yield found
    for optimizer in program.optimizers.values():
        optimizer.step()


def _copied(arguments: Any) -> Any:
    return _pytree.tree_map_only(torch.Tensor, torch.clone, arguments)


def _parameters(program: Boundaries) -> dict[nn.Parameter, str]:
    """The parameters that are trained, with their names."""
    return {
        one: name
        for module in reversed(program.modules.values())
        for name, one in module.named_parameters()
        if one.requires_grad
    }


@contextlib.contextmanager
def _unchanged(program: Boundaries) -> Iterator[list[torch.Tensor]]:
    """Restores parameters, gradients, modules' buffers and attributes, the optimizers' state and random numbers. Yields copies of the parameters."""
    parameters = _parameters(program)
    own = [vars(one) for module in program.modules.values() for one in module.modules()]
    states = [optimizer.state for optimizer in program.optimizers.values()]
    # What a step replaces, adds or counts without a tensor, beside the tensors that it changes.
    buffers = [one["_buffers"] for one in own if isinstance(one.get("_buffers"), dict)]
    entries = [*own, *buffers, *states, *(one for state in states for one in state.values())]
    kept = [dict(one) for one in entries]
    held = [*parameters, *(one for module in program.modules.values() for one in module.buffers())]
    for state in states:
        held += [one for one in _pytree.tree_leaves(list(state.values())) if isinstance(one, torch.Tensor)]
    copies, gradients = [one.detach().clone() for one in held], [one.grad for one in parameters]
    numbers = random.getstate()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        for parameter in parameters:
            parameter.grad = None
        try:
            yield copies[: len(parameters)]
        finally:
            random.setstate(numbers)
            for now, before in zip(entries, kept, strict=True):
                now.clear()
                now.update(before)
            with torch.no_grad():
                for one, copy in zip(held, copies, strict=True):
                    one.copy_(copy)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient


def _difference(mine: _Results, theirs: _Results) -> tuple[float, str]:
    """The largest relative difference of a tensor, and its name: the norm of the difference over the tensor's, at least over a hundredth of the largest one's."""
    found = [(0.0, "")]
    for left, right, factor in ((mine.outputs, theirs.outputs, 1.0), (mine.gradients, theirs.gradients, _OF_GRADIENTS)):
        if [(name, one.shape) for name, one in left.items()] != [(name, one.shape) for name, one in right.items()]:
            return math.inf, "other results"
        norms = {name: float(one.double().norm()) for name, one in left.items()}
        for name, one in left.items():
            apart = float((one.double() - right[name].double()).norm()) / (
                max(norms[name], 0.01 * max(norms.values())) or 1.0
            )
            found.append((math.inf if math.isnan(apart) else apart / factor, name))
    return max(found, key=lambda one: one[0])
