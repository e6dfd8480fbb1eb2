"""What scripts of checks share: how they run, and a kernel against its reference in fp64."""

import contextlib
import json
import sys
import time
import traceback
from unittest import mock

import torch
from tilescope_kernels import CATALOG
from tilescope_kernels.spec import FORWARD

SPECS = {spec.name: spec for spec in CATALOG}
NAN, INF = float("nan"), float("inf")


def draw(*shape, seed=0, grad=False):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def relative_error(actual, expected):
    """Of norms, without NaN, which must be in the same places."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    actual, expected = actual.detach().double(), expected.detach().double()
    assert torch.equal(actual.isnan(), expected.isnan()), "NaN in other places"
    actual, expected = actual.nan_to_num(), expected.nan_to_num()
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-30))


def close(actual, expected, tolerance=1e-6):
    error = relative_error(actual, expected)
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


def outputs_of(result):
    return result if isinstance(result, tuple) else (result,)


def compare(
    ours,
    plain,
    tensors,
    tolerance=1e-5,
    *,
    wanted=None,
    times=3.0,
    strided=False,
):
    """Results of ``ours``, and gradients of the tensors or of those numbered in ``wanted``, against ``plain`` in fp64.

    A gradient may have ``times`` the error of a result. The upstream gradient is contiguous unless ``strided``.
    """
    chosen = [i for i, tensor in enumerate(tensors) if tensor is not None] if wanted is None else wanted
    leaves = [None if tensor is None else tensor.detach() for tensor in tensors]
    twins = [None if leaf is None else leaf.double() for leaf in leaves]
    asked = [[values[i].requires_grad_() for i in chosen] for values in (leaves, twins)]
    actual, expected = outputs_of(ours(*leaves)), outputs_of(plain(*twins))
    upstream = [draw(*out.shape, 1 + strided, seed=9 + i).to(out)[..., 0] for i, out in enumerate(actual)]
    found = torch.autograd.grad(actual, asked[0], upstream)
    known = torch.autograd.grad(expected, asked[1], [gradient.double() for gradient in upstream])
    for one, other in zip(actual, expected, strict=True):
        close(one, other, tolerance)
    for i, one, other in zip(chosen, found, known, strict=True):
        assert one.dtype == leaves[i].dtype and one.isfinite().all(), f"gradient {i}"
        try:
            close(one, other, times * tolerance)
        except AssertionError as error:
            raise AssertionError(f"gradient {i}: {error}") from None


def against_reference(
    name,
    workload,
    config=None,
    *,
    impl="triton",
    backward=True,
    device="cpu",
):
    """Outputs, and gradients where the kernel has some, within its declared tolerance."""
    spec = SPECS[name]
    inputs = spec.inputs(spec.workload(workload), device)
    tolerance = spec.tolerance.get(spec.workload(workload).dtype, 1e-6)
    precise = {
        key: value.detach().double().requires_grad_(value.requires_grad)
        if torch.is_tensor(value) and value.is_floating_point()
        else value
        for key, value in inputs.items()
    }
    options = {} if config is None else {"config": config}
    expected = outputs_of(spec.reference(**precise))
    differentiated = backward and spec.passes != (FORWARD,)
    leaves = [key for key, value in inputs.items() if differentiated and torch.is_tensor(value) and value.requires_grad]
    grads: list[torch.Tensor] = []
    wanted: tuple[torch.Tensor, ...] = ()
    # On a GPU the first call of a kind decides, the second is watched, the third makes those launches again (``kept``).
    for call in range(3 if impl == "triton" and device != "cpu" else 1):
        outputs = outputs_of(spec.implementations[impl].call(**inputs, **options))
        assert all(out.float().isfinite().all() for out in outputs), f"{name} {workload} {config}: not finite"
        pairs = [(f"output {n}", tolerance, *pair) for n, pair in enumerate(zip(outputs, expected, strict=True))]
        actual: tuple[torch.Tensor, ...] = ()
        if leaves:
            # A loss is a mean of many: unscaled, its gradients in fp16 are subnormal numbers and little more than their rounding.
            grads = grads or [
                draw(*out.shape, seed=number).to(out) if out.dim() else torch.full_like(out, 1024.0)
                for number, out in enumerate(outputs, 1)
            ]
            # The reference first: Liger-Kernel's backward passes write the gradients they are given.
            wanted = wanted or torch.autograd.grad(
                expected, [precise[key] for key in leaves], [g.double() for g in grads]
            )
            actual = torch.autograd.grad(outputs, [inputs[key] for key in leaves], grads)
            gradients = zip(leaves, actual, wanted, strict=True)
            pairs += [(f"gradient of {key}", 3 * tolerance, one, other) for key, one, other in gradients]
        for what, bound, one, other in pairs:
            try:
                close(one, other, bound)
            except AssertionError as error:
                raise AssertionError(f"{what} of {name} {workload} {config}, call {call}: {error}") from None
        # Memory of results that are right already would make up for a launch that is left out.
        for tensor in (*outputs, *actual):
            if tensor.is_floating_point():
                tensor.detach().fill_(NAN)


def told_apart(configs):
    """The first of the configs that differ in warps and stages alone, which the interpreter does not have."""
    tiles = [{key: value for key, value in one.items() if key not in ("num_warps", "num_stages")} for one in configs]
    return [config for place, config in enumerate(configs) if tiles.index(tiles[place]) == place]


@contextlib.contextmanager
def poisoned():
    """New memory is NaN, or the largest integer, so that an element which no program writes shows."""
    empty, like = torch.empty, torch.empty_like

    def fill(values):
        return values.fill_(NAN if values.is_floating_point() else torch.iinfo(values.dtype).max)

    with (
        mock.patch.object(torch, "empty", lambda *args, **kwargs: fill(empty(*args, **kwargs))),
        mock.patch.object(torch, "empty_like", lambda *args, **kwargs: fill(like(*args, **kwargs))),
    ):
        yield


def main(namespace):
    """Runs checks of a module and prints what went wrong, by name: nothing, or the end of the traceback."""
    results = {}
    for name in sys.argv[1:] or [name for name in namespace if name.startswith("check_")]:
        began = time.process_time()
        try:
            namespace[name]()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc(limit=-4)
        print(f"{time.process_time() - began:7.2f} s  {name}", file=sys.stderr)
    print(json.dumps(results))
