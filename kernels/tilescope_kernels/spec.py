"""The declaration of a kernel: ``KernelSpec`` and its parts.

Importing this module imports neither torch nor triton, so declarations can be read, sent between processes and tested anywhere.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Dtypes by the short name used in workload ids: PyTorch's attribute name and the size in bytes.
DTYPES: dict[str, tuple[str, int]] = {
    "fp64": ("float64", 8),
    "fp32": ("float32", 4),
    "fp16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "fp8": ("float8_e4m3fn", 1),
    "int8": ("int8", 1),
    "int32": ("int32", 4),
}

#: The passes of a kernel. A backward pass computes the gradient of every differentiable input. A step is a forward and a
#: backward pass together, for functions whose forward pass already computes part of the gradient.
FORWARD, BACKWARD, STEP = "forward", "backward", "forward+backward"

Config = Mapping[str, int]


class WorkloadError(ValueError):
    """A workload that does not parse or does not fit the kernel. The message says what would be accepted."""


@dataclass(frozen=True)
class Workload:
    """One problem size: named dimensions, a dtype, and the seed of its random inputs.

    ``dims`` maps each dimension's name to its extent in elements. ``label`` is a name for the size (``small``, ``large``,
    ``ragged``) and not part of its identity.
    """

    dims: Mapping[str, int]
    dtype: str
    seed: int = 0
    label: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise WorkloadError(f"unknown dtype {self.dtype!r}: use one of {', '.join(DTYPES)}")
        for name, extent in self.dims.items():
            if extent < 0:
                raise WorkloadError(f"dimension {name} is {extent}: it must not be negative")

    @property
    def id(self) -> str:
        """Stable name such as ``1823x781-fp32``. A seed other than 0 is appended: ``-s7``."""
        extents = "x".join(str(extent) for extent in self.dims.values())
        return f"{extents}-{self.dtype}" + (f"-s{self.seed}" if self.seed else "")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype][1]

    @property
    def elements(self) -> int:
        """Product of all dimensions."""
        return math.prod(self.dims.values())

    @property
    def bytes(self) -> int:
        """Bytes of ``elements``."""
        return self.elements * self.itemsize

    @property
    def pipe(self) -> str:
        """The ``pipe`` of a matrix product: tensor cores at 16 bits."""
        return self.dtype if self.dtype in ("bf16", "fp16") else "fp32"


@dataclass(frozen=True)
class Cost:
    """The operations and bytes that no implementation of the algorithm can avoid.

    ``flops`` counts an addition, multiplication, division or transcendental function as one operation and a fused
    multiply-add as two. ``bytes_read`` counts each input once, ``bytes_written`` each output once. ``pipe`` is the execution
    unit that does the arithmetic: ``fp32``, ``fp64``, or on tensor cores ``bf16``, ``fp16``, ``tf32``, ``fp8``, ``int8``.
    """

    flops: int
    bytes_read: int
    bytes_written: int
    pipe: str = "fp32"

    @property
    def bytes(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Implementation:
    """One way to compute the kernel's function.

    ``call(**inputs)`` returns a tensor or a tuple of tensors. If there are ``configs``, ``call`` also takes ``config``: one of
    them, or None for the implementation's own choice. The first is the default where nothing can be timed. ``requires``
    names the distributions that must be installed; without them the implementation is left out.
    """

    call: Callable[..., Any]
    summary: str = ""
    configs: tuple[Config, ...] = ()
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelSpec:
    """The declaration of one kernel: its inputs, implementations, reference, workloads, cost and tolerances.

    ``inputs(workload, device)`` draws the keyword arguments from the workload's seed. Tensors that want a gradient have
    ``requires_grad`` set if ``passes`` has more than ``"forward"``. ``reference(**inputs)`` is plain PyTorch in the inputs'
    precision: to compare, call it with fp32 or fp64 copies. ``tolerance`` maps a short dtype name to the largest accepted
    ``||out - ref|| / ||ref||``. ``cost(workload, direction)`` is the least that the algorithm costs.
    """

    name: str
    summary: str
    dims: tuple[str, ...]
    implementations: Mapping[str, Implementation]
    reference: Callable[..., Any]
    inputs: Callable[[Workload, Any], dict[str, Any]]
    workloads: tuple[Workload, ...]
    cost: Callable[[Workload, str], Cost]
    tolerance: Mapping[str, float]
    passes: tuple[str, ...] = (FORWARD,)
    targets: tuple[str, ...] = field(default=("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"))

    def workload(self, text: str) -> Workload:
        """The workload with this label (``ragged``) or id (``1823x781-fp32``). Raises WorkloadError for any other text."""
        for known in self.workloads:
            if text in (known.label, known.id):
                return known
        match = re.fullmatch(r"(\d{1,18}(?:x\d{1,18})*)-([a-z0-9]+?)(?:-s(\d{1,18}))?", text)
        extents = [int(extent) for extent in match[1].split("x")] if match else []
        if match and len(extents) == len(self.dims) and match[2] in DTYPES:
            return Workload(dict(zip(self.dims, extents, strict=True)), match[2], int(match[3] or 0))
        shape = "x".join(name.upper() for name in self.dims)
        known_names = ", ".join(f"{w.label} ({w.id})" if w.label else w.id for w in self.workloads)
        raise WorkloadError(
            f"{self.name} has no workload {text[:80]!r}: give {shape}-DTYPE with DTYPE one of {', '.join(DTYPES)} and numbers below 10^18, "
            f"or one of its own: {known_names}"
        )


def declare(
    name: str, summary: str, dims: str, sizes: str, *, reference: Callable[..., Any],
    inputs: Callable[[Workload, Any], dict[str, Any]], cost: Callable[[Workload, str], Cost], tolerance: Mapping[str, float],
    passes: str = FORWARD, targets: tuple[str, ...] = KernelSpec.targets, **implementations: Implementation | None,
) -> KernelSpec:  # fmt: skip
    """A ``KernelSpec`` with ``dims`` and ``passes`` separated by spaces, and ``sizes`` as ``"small 128x1024-bf16, one 1x64-fp32"``.

    ``eager`` is followed by the implementation ``compile``, which compiles it, unless that is given, or None.
    """
    named: dict[str, Implementation] = {}
    for key, each in implementations.items():
        if each:
            named[key] = each
        if each and key == "eager" and "compile" not in implementations:
            named["compile"] = Implementation(compiled(each.call), "torch.compile of eager")
    parts = (reference, inputs, (), cost, tolerance, tuple(passes.split()), targets)
    spec = KernelSpec(name, summary, tuple(dims.split()), named, *parts)
    pairs = (size.split() for size in sizes.split(","))
    return replace(spec, workloads=tuple(replace(spec.workload(id), label=label) for label, id in pairs))


def compiled(eager: Callable[..., Any], mode: str = "default") -> Callable[..., Any]:
    """``torch.compile(eager, mode=mode)`` with static shapes, built at the first call, because importing dynamo takes seconds."""

    @functools.cache
    def build() -> Callable[..., Any]:
        import torch._dynamo  # noqa: PLC0415 (see above)

        # Every workload recompiles. Beyond its default limit of 8, dynamo would silently run eager code; with fullgraph it
        # raises an error instead.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        return torch.compile(eager, mode=mode, dynamic=False, fullgraph=True)

    @functools.wraps(eager)
    def call(*args: Any, **inputs: Any) -> Any:
        return build()(*args, **inputs)

    return call


def peer(distribution: str, function: str, summary: str, *names: str) -> Implementation:
    """An optional library's ``module:function`` of the inputs with these ``names``, or of all, imported at the first call."""
    module, path = function.split(":")

    def call(**inputs: Any) -> Any:
        found = operator.attrgetter(path)(importlib.import_module(module))
        return found(*(inputs[name] for name in names or inputs))

    return Implementation(call, summary, requires=(distribution,))


class Draw:
    """Draws the inputs of a workload from its seed. Tensors on ``meta`` have no values, and no ``numbers`` to draw them from."""

    def __init__(self, workload: Workload, device: Any) -> None:
        import torch  # noqa: PLC0415

        self.workload, self.device = workload, device
        self.dtype: torch.dtype = getattr(torch, DTYPES[workload.dtype][0])
        is_meta = torch.device(device).type == "meta"
        self.numbers = None if is_meta else torch.Generator(device=device).manual_seed(workload.seed)
        self.empty = functools.partial(torch.empty, device=device)

    def __call__(self, *shape: int, scale: float = 1.0, shift: float = 0.0, grad: bool = False) -> torch.Tensor:
        """A normally distributed tensor of mean ``shift`` and standard deviation ``scale``, in the workload's dtype.

        Zeros would mislead: a GPU draws less power on them and runs up to 13 % faster than on data.
        """
        is_small = not self.dtype.is_floating_point or self.dtype.itemsize == 1
        values: torch.Tensor = self.empty(shape, dtype=None if is_small else self.dtype)
        if self.numbers is not None:
            values.normal_(shift, scale, generator=self.numbers)
        return values.to(self.dtype).requires_grad_(grad)


def drawn(draws: Callable[..., dict[str, Any]]) -> Callable[[Workload, Any], dict[str, Any]]:
    """The ``inputs`` of a spec: the decorated function of a ``Draw`` and the workload's extents."""

    @functools.wraps(draws)
    def inputs(workload: Workload, device: Any) -> dict[str, Any]:
        return draws(Draw(workload, device), *workload.dims.values())

    return inputs
