"""What ``benchmarks/tuning.py`` searches: functions, their configs, and how each is launched.

Kernels of the catalog launch as their launchers launch them, with the configs of the catalog or with a space of the kernel's own
parameters. Two are foreign: ``chunk_states`` is written as a person's own file is, and Liger's Kullback-Leibler divergence is read where
Liger is installed. Nothing here touches a GPU before ``given`` is called.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from tilescope.collectors import compiler
from tilescope.execution import execute, launches
from tilescope.execution.launches import Launch
from tilescope.execution.not_applicable import NotApplicable
from tilescope.table.case import Case, config_text

from benchmarks import chunk_states

#: Options of a launch that are arguments of ``triton.Config``.
OPTIONS = ("num_warps", "num_stages")
Values = Mapping[str, Any]
Grid = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """One function to be tuned.

    ``configs`` are what each config sets, by its text. ``grid`` is that of a config, by what Triton tells of it: all but its warps.
    ``given`` draws the other arguments on the GPU.
    """

    name: str
    function: Any
    configs: Mapping[str, Values]
    grid: Callable[[Values], Grid]
    given: Callable[[], dict[str, Any]]


def _named(configs: Iterator[Values] | Sequence[Values]) -> dict[str, Values]:
    return {config_text(config): config for config in configs}


def _product(**values: Sequence[int]) -> Iterator[dict[str, int]]:
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def _launches(case: Case, target: str) -> list[Launch]:
    return list(compiler.launches_of(case, execute.load_spec(case.kernel), target)[0])


def _on_gpu(case: Case, without: Sequence[str]) -> dict[str, Any]:
    """The arguments with which the case launches on the GPU, but those that configs set."""
    with launches.catch() as caught:
        execute.prepare(execute.load_spec(case.kernel), case, "cuda")()
    return {name: value for name, value in caught[0].arguments.items() if name not in without}


def _of_catalog(kernel: str, workload: str, target: str) -> Problem:
    """The configs of the catalog, of those that launch one and the same function, each distinct launch once."""
    found: dict[str, Launch] = {}
    for config in execute.load_spec(kernel).implementations["triton"].configs:
        case = Case(kernel, "triton", "forward", workload, config_text(config))
        try:
            made = _launches(case, target)
        except (ValueError, NotApplicable):
            continue  # a config that these operands do not allow
        # The block of a tensor descriptor would depend on the config.
        if len(made) == 1 and not any(type(v).__name__ == "TensorDescriptor" for v in made[0].arguments.values()):
            found[case.config] = made[0]
    function, _ = Counter(launch.function for launch in found.values()).most_common(1)[0]
    values = {text: {**one.arguments, **one.kwargs} for text, one in found.items() if one.function is function}
    names = sorted({name for one in values.values() for name in one if name in OPTIONS or _varies(name, values)})
    configs, grids = dict[str, Values](), dict[tuple[Any, ...], Grid]()
    for text, one in values.items():
        config = {name: one[name] for name in names if name in one}
        if config not in configs.values():
            configs[text] = config
        grids[_shape(config)] = found[text].grid
    case = Case(kernel, "triton", "forward", workload, next(iter(configs)))
    return Problem(
        kernel,
        function,
        configs,
        lambda meta: grids[_shape({name: meta[name] for name in names if name in meta})],
        functools.partial(_on_gpu, case, names),
    )


def _shape(config: Values) -> tuple[Any, ...]:
    return tuple(sorted((name, value) for name, value in config.items() if name not in OPTIONS))


def _varies(name: str, values: Mapping[str, Values]) -> bool:
    plain = [one.get(name) for one in values.values()]
    return all(isinstance(value, (int, str, type(None))) for value in plain) and len(set(plain)) > 1


def _with_space(
    case: Case, function: str, target: str, configs: Sequence[Values], grid: Callable[[Values], Grid]
) -> Problem:
    """A kernel of the catalog with other configs of its own parameters, launched as it launches in the case."""
    (launch,) = _launches(case, target)
    if launch.name != function:
        raise ValueError(f"{case.id} launches {launch.name}, not {function}")
    named = _named(configs)
    names = sorted({name for config in configs for name in config})
    return Problem(case.kernel, launch.function, named, grid, functools.partial(_on_gpu, case, names))


def matmul(target: str) -> Problem:
    """4096 in every direction, bf16."""
    return _of_catalog("matmul", "4096x4096x4096-bf16", target)


def softmax(target: str) -> Problem:
    """16384 rows of 4096, bf16."""
    return _of_catalog("softmax", "16384x4096-bf16", target)


def layer_norm(target: str) -> Problem:
    """32768 rows of 2048, bf16: rows a program and warps, with 8 to 256 elements a thread."""
    rows, columns = 32768, 2048
    space = _product(ROWS=(1, 2, 4, 8, 16), num_warps=(1, 2, 4, 8, 16, 32))
    configs = [c for c in space if 8 <= c["ROWS"] * columns // (32 * c["num_warps"]) <= 256]
    case = Case("layer_norm", "triton", "forward", f"{rows}x{columns}-bf16")
    return _with_space(case, "layer_norm_kernel", target, configs, lambda meta: (triton.cdiv(rows, meta["ROWS"]),))


def attention(target: str) -> Problem:
    """4 batches of 32 heads, 4096 queries and keys of 128 columns, bf16, without tensor descriptors."""
    space = _product(BLOCK_M=(64, 128), BLOCK_N=(32, 64, 128), num_warps=(4, 8), num_stages=(2, 3))
    workload = "4x32x1x4096x4096x128-bf16"
    without = next(c for c in execute.load_spec("attention").implementations["triton"].configs if not c["TMA"])
    case = Case("attention", "triton", "forward", workload, config_text(without))
    heads = 4 * 32
    return _with_space(
        case, "attention_kernel", target, list(space), lambda meta: (triton.cdiv(4096, meta["BLOCK_M"]) * heads,)
    )


def conv2d(target: str) -> Problem:
    """32 images of 56x56 and 128 channels by 128 filters of 3x3, bf16, without tensor descriptors."""
    space = _product(BLOCK_M=(64, 128, 256), BLOCK_N=(64, 128), BLOCK_K=(64,), num_warps=(4, 8), num_stages=(3, 4))
    without = next(c for c in execute.load_spec("conv2d").implementations["triton"].configs if not c["TMA"])
    case = Case("conv2d", "triton", "forward", "32x128x56x56x128x3-bf16", config_text(without))

    def grid(meta: Values) -> Grid:
        return (triton.cdiv(32 * 56 * 56, meta["BLOCK_M"]) * triton.cdiv(128, meta["BLOCK_N"]),)

    return _with_space(case, "conv2d_kernel", target, list(space), grid)


def states(_target: str) -> Problem:
    """``chunk_states``: 8 sequences of 4096 steps, 32 heads of 64 channels, a state of 128, chunks of 256."""
    return Problem(
        "chunk_states",
        chunk_states.chunk_states_kernel,
        _named(chunk_states.CONFIGS),
        chunk_states.grid_of(batch=8, steps=4096, heads=32, channels=64, state=128, chunk=256),
        functools.partial(
            chunk_states.arguments, batch=8, steps=4096, heads=32, channels=64, state=128, chunk=256, device="cuda"
        ),
    )


def divergence(_target: str) -> Problem:
    """Liger's Kullback-Leibler divergence of 8192 rows of 32000, fp32: the whole loop's block, warps and stages."""
    from liger_kernel.ops import kl_div  # noqa: PLC0415 - where it is installed

    rows, columns = 8192, 32000

    def given() -> dict[str, Any]:
        numbers = torch.Generator("cuda").manual_seed(0)
        scores = [torch.randn(rows, columns, device="cuda", generator=numbers) for _ in range(2)]
        guess, truth = scores[0].log_softmax(-1), scores[1].softmax(-1)
        return {
            "y_ptr": guess, "y_stride": columns, "gt_ptr": truth, "gt_stride": columns,
            "loss_ptr": torch.empty(rows, device="cuda"), "loss_stride": 1, "n_cols": columns, "eps": 1e-10,
            "reduction": 1, "log_target": False,
        }  # fmt: skip

    space = _product(BLOCK_SIZE=(1024, 2048, 4096, 8192, 16384), num_warps=(4, 8, 16, 32), num_stages=(2, 3))
    return Problem("liger kl_div", kl_div._kldiv_kernel_forward, _named(space), lambda meta: (rows,), given)


def every() -> dict[str, Callable[[str], Problem]]:
    """The problems by name, each made for a target."""
    found = {make.__name__: make for make in (matmul, softmax, layer_norm, attention, conv2d, states)}
    return {**found, **({"divergence": divergence} if importlib.util.find_spec("liger_kernel") else {})}
