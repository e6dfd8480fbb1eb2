"""``tilescope.spec``: declares a kernel from a function, example inputs and a reference, and derives the rest.

Imports torch inside functions only, when the caller's tensors have imported it already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilescope.notebook.cell_source import python_function
from tilescope.table.case import dimensions

if TYPE_CHECKING:
    import torch
    from tilescope_kernels.spec import Cost, KernelSpec, Workload

#: The largest relative error by dtype, the same as for the library's kernels over rows.
TOLERANCE = {"fp64": 1e-12, "fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2}


@dataclass(frozen=True)
class Example:
    """A tensor to draw: ``shape`` names dimensions, ``dtype`` is torch's name, empty for the workload's own.

    Floating-point values are standard normal, others uniform over ``low`` to ``high``, both included.
    """

    shape: tuple[str, ...]
    dtype: str = ""
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Examples:
    """``KernelSpec.inputs`` from examples: tensors are drawn from the workload's seed, other values stay."""

    arguments: Mapping[str, Any]

    def __call__(self, workload: Workload, device: Any) -> dict[str, Any]:
        """The keyword arguments, with tensors on ``device``; without values on ``meta``."""
        import torch  # noqa: PLC0415
        from tilescope_kernels.spec import DTYPES  # noqa: PLC0415

        place = torch.device(device)
        numbers = None if place.type == "meta" else torch.Generator(place).manual_seed(workload.seed)

        def draw(example: Example) -> torch.Tensor:
            shape = tuple(workload.dims[name] for name in example.shape)
            dtype = getattr(torch, example.dtype or DTYPES[workload.dtype][0])
            if numbers is None:
                return torch.empty(shape, dtype=dtype, device=place)
            if dtype.is_floating_point:
                return torch.randn(shape, generator=numbers, device=place).to(dtype)
            return torch.randint(example.low, example.high + 1, shape, generator=numbers, device=place).to(dtype)

        return {name: draw(value) if isinstance(value, Example) else value for name, value in self.arguments.items()}


@dataclass(frozen=True)
class ReferenceCost:
    """``KernelSpec.cost`` from the reference: each input read once, each output written once, operations counted.

    Matrix products count as in ``torch.utils.flop_counter``, views nothing, every other operator one operation for each
    element of its largest argument or result. This is an estimate; a declared cost replaces it.
    """

    inputs: Callable[[Workload, Any], dict[str, Any]]
    reference: Callable[..., Any]

    def __call__(self, workload: Workload, direction: str) -> Cost:
        """Runs the reference on tensors without data, or on the CPU if it reads their values.

        Raises ValueError, in one line, where the reference raises there, too.
        """
        import torch  # noqa: PLC0415
        from tilescope_kernels.spec import Cost  # noqa: PLC0415

        try:
            inputs = self.inputs(workload, torch.device("meta"))
            operations, outputs = count_operations(lambda: self.reference(**inputs))
        except Exception:
            inputs = self.inputs(workload, torch.device("cpu"))
            try:
                operations, outputs = count_operations(lambda: self.reference(**inputs))
            except Exception as error:
                from tilescope.notebook.script_running import placed  # noqa: PLC0415 (imports what captures need)

                raise ValueError(f"the reference raises {type(error).__name__}: {placed(error)}") from error
        read, written = (
            sum(t.nbytes for t in values if isinstance(t, torch.Tensor)) for values in (inputs.values(), outputs)
        )
        tensor_cores = workload.dtype in ("bf16", "fp16") and operations["matrix"] > operations["other"]
        pipe = workload.dtype if tensor_cores or workload.dtype == "fp64" else "fp32"
        return Cost(flops=sum(operations.values()), bytes_read=read, bytes_written=written, pipe=pipe)


def count_operations(call: Callable[[], Any]) -> tuple[dict[str, int], tuple[Any, ...]]:
    """Operations of ``call`` by kind (``matrix`` and ``other``), as ``ReferenceCost`` counts them, and its outputs."""
    import torch  # noqa: PLC0415
    from tilescope_kernels import dispatch  # noqa: PLC0415
    from torch.utils.flop_counter import FlopCounterMode, flop_registry  # noqa: PLC0415

    operations = {"matrix": 0, "other": 0}

    class Count(dispatch.OnLooker):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            taken = tensors((args, kwargs))
            # An operator without tensor arguments only allocates.
            if taken and not func.is_view and func.overloadpacket not in flop_registry:
                operations["other"] += max(t.numel() for t in (*taken, *tensors(result)))
            return result

    with torch.no_grad(), FlopCounterMode(display=False) as products, Count():  # type: ignore[no-untyped-call]
        results = call()
    operations["matrix"] = int(products.get_total_flops())
    return operations, (results,) if isinstance(results, torch.Tensor) else tuple(results)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a tuple, list, mapping or dataclass of a library, in order. Imports torch."""
    import torch  # noqa: PLC0415
    from torch.utils._pytree import tree_leaves  # noqa: PLC0415

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def spec(
    function: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    reference: Callable[..., Any],
    name: str = "",
    configs: Sequence[Mapping[str, int]] = (),
    cost: Callable[[Workload, str], Cost] | None = None,
    tolerance: Mapping[str, float] | None = None,
) -> KernelSpec:
    """Declares ``function``, which launches a Triton kernel, as a kernel that can be profiled.

    ``inputs`` are examples of its keyword arguments: contiguous tensors on any device, and plain values. Their
    extents, in order of appearance (512 twice, if a tensor is 512x512), become the dimensions ``d0``, ``d1``, …, so that ``profile`` can take other
    ``workloads`` (``64x100-fp32``). ``reference(**inputs)`` computes the right result in plain PyTorch; it is profiled beside
    the function, as ``eager``. ``configs`` are values of the argument ``config`` of ``function``. ``cost`` is the
    algorithm's floor, by default ``ReferenceCost``; ``tolerance`` is the largest relative error by dtype.

    Raises ValueError, in one line, for an unsuitable function or example.
    """
    from tilescope_kernels.spec import Implementation, KernelSpec, Workload  # noqa: PLC0415 (imports torch)

    check_launcher(function)
    examples, dims, dtype = _from_examples(inputs)
    draw = Examples(examples)
    return KernelSpec(
        name=name or function.__name__,
        summary=next(iter((function.__doc__ or "").strip().splitlines()), ""),
        dims=tuple(dims),
        implementations={
            "triton": Implementation(function, configs=tuple(configs)),
            "eager": Implementation(reference, "the reference"),
        },
        reference=reference,
        inputs=draw,
        workloads=(Workload(dims, dtype, label="example"),),
        cost=cost or ReferenceCost(draw, reference),
        tolerance=dict(tolerance or TOLERANCE),
    )


def check_launcher(function: Any) -> None:
    """Raises ValueError, in one line, unless ``function`` can be called with inputs."""
    name = getattr(python_function(function) or function, "__name__", repr(function))
    if hasattr(function, "fn") and hasattr(function, "run"):
        raise ValueError(f"{name} is a Triton kernel: give the function that launches it")
    if not callable(function):
        raise ValueError(f"{name} is no function: give the one that launches your kernel")


def _from_examples(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int], str]:
    """The examples by argument, the dimensions with their extents, and the short name of the first float's dtype."""
    import torch  # noqa: PLC0415
    from tilescope_kernels.spec import DTYPES  # noqa: PLC0415

    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise ValueError(
            "no input is a tensor: give examples of what the function takes, as inputs={'x': torch.randn(64, 100)}"
        )
    short = {f"torch.{long}": name for name, (long, _) in DTYPES.items()}
    main = next((t for t in tensors.values() if t.is_floating_point()), next(iter(tensors.values()))).dtype
    if str(main) not in short:
        raise ValueError(f"inputs are {main}: give one of {', '.join(sorted(short))}")
    dims = {f"d{index}": int(extent) for index, extent in enumerate(dimensions(t.shape for t in tensors.values()))}
    examples: dict[str, Any] = dict(inputs)
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"example {name} is not contiguous: declare a KernelSpec, whose inputs() may draw any layout"
            )
        # A vector of as many elements as a square matrix has columns goes with these, as in broadcasting.
        alike = {extent: [name for name, other in dims.items() if other == extent] for extent in tensor.shape}
        shape = tuple(alike[extent].pop() for extent in reversed(tensor.shape))[::-1]
        dtype = "" if tensor.dtype == main else str(tensor.dtype).removeprefix("torch.")
        whole = tensor.numel() > 0 and not tensor.is_floating_point()
        low, high = (int(tensor.min()), int(tensor.max())) if whole else (0, 0)
        examples[name] = Example(shape, dtype, low, high)
    return examples, dims, short[str(main)]
