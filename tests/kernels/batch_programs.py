"""Operators inside what programs put around them: autocast, transforms, shards, recomputation, compilers. In Triton's interpreter."""

import contextlib
import functools
import warnings

import tilescope_kernels as kernels
import torch
import torch.nn.functional as F
from interpreted import SPECS, close, draw, grads, targets
from operator_calls import operator_calls
from opinfo_samples import compare_with_opinfo
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

ROWS, WEIGHT = draw(6, 4, 16), draw(16, seed=1)


def check_autocast_gives_dtypes_of_torch_functional():
    """On a GPU's lists of operators, whose tensors are fake here."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    with FakeTensorMode(), contextlib.ExitStack() as after:
        after.callback(torch.set_autocast_enabled, "cuda", False)
        x, square, vector = (torch.empty(*shape, device="cuda") for shape in ((16, 16), (16, 16), (16,)))
        half, heads = x.bfloat16(), torch.empty(2, 4, 8, 16, device="cuda")
        target = torch.zeros(16, dtype=torch.int64, device="cuda")
        images, filters = (
            torch.empty(shape, device="cuda", memory_format=torch.channels_last)
            for shape in ((2, 4, 8, 8), (3, 4, 3, 3))
        )
        down, up = torch.empty(3, 16, device="cuda"), torch.empty(16, 3, device="cuda")
        pairs = {
            "matmul": (kernels.matmul(half, square), half @ square),
            "softmax": (kernels.softmax(half), F.softmax(half, -1)),
            "layer_norm": (kernels.layer_norm(half, 16, vector), F.layer_norm(half, (16,), vector)),
            "rms_norm": (kernels.rms_norm(half, 16, vector), F.rms_norm(half, (16,), vector)),
            "group_norm": (kernels.group_norm(half, 2, vector), F.group_norm(half, 2, vector)),
            "gelu": (kernels.gelu(half), F.gelu(half)),
            "row_sum": (kernels.row_sum(half), half.sum(-1)),
            "cross_entropy": (kernels.cross_entropy(half, target), F.cross_entropy(half, target)),
            "linear_cross_entropy": (
                kernels.linear_cross_entropy(half, square, target), F.cross_entropy(F.linear(half, square), target),
            ),
            "attention": (
                kernels.scaled_dot_product_attention(heads.bfloat16(), heads, heads),
                F.scaled_dot_product_attention(heads.bfloat16(), heads, heads),
            ),
            "conv2d": (kernels.conv2d(images, filters), F.conv2d(images, filters)),
            "norm_linear": (kernels.layer_norm_linear(half, vector, None, square), F.linear(half, square)),
            "lora_linear": (kernels.lora_linear(half, square, down, up), F.linear(half, square)),
        }  # fmt: skip
        for name, (one, other) in pairs.items():
            assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{name}: {one.dtype}, not {other.dtype}"
        assert kernels.vector_add(half, x).dtype == kernels.swiglu(x, half).dtype == torch.float32
        assert torch.ops.tilescope.softmax(half, "").dtype == torch.float32


def check_autocast_gradients_have_the_parameters_dtype():
    x, weight, scale = draw(5, 16).half(), draw(16, 16, seed=1, grad=True), draw(16, seed=2, grad=True)

    def step(matmul, norm):
        with torch.autocast("cpu", torch.float16):
            loss = norm(matmul(x, weight), 16, scale).square().sum()
        return grads(loss, (weight, scale))

    with torch.no_grad():
        assert kernels.matmul(x, weight.half()).dtype == torch.float16
    for one, other in zip(
        step(kernels.matmul, kernels.rms_norm),
        step(torch.matmul, lambda y, n, w: F.rms_norm(y.float(), (n,), w)),
        strict=True,
    ):
        assert one.dtype == torch.float32
        close(one, other, 5e-3)


def check_meta_tensors_give_shapes_and_dtypes():
    for spec in SPECS.values():
        ours = spec.implementations["triton"].call
        if ours.__module__.startswith("tilescope_kernels.studies") or spec.name in ("ragged_attention", "histogram"):
            continue  # which read values
        inputs = spec.inputs(spec.workload("small"), "meta")
        one, other = ours(**inputs), spec.reference(**inputs)
        pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
        for actual, expected in pairs:
            assert actual.is_meta and (actual.shape, actual.dtype) == (expected.shape, expected.dtype), spec.name
            if actual.requires_grad:
                torch.autograd.backward(actual, torch.empty_like(actual), retain_graph=True)


#: Functions of rows beside PyTorch's.
PAIRS = {
    "rms_norm": (lambda x, w: kernels.rms_norm(x, 16, w), lambda x, w: F.rms_norm(x, (16,), w)),
    "layer_norm": (lambda x, w: kernels.layer_norm(x, 16, w, w), lambda x, w: F.layer_norm(x, (16,), w, w)),
    "gelu": (lambda x, w: kernels.gelu(x * w), lambda x, w: F.gelu(x * w)),
    "softmax": (lambda x, w: kernels.softmax(x * w), lambda x, w: F.softmax(x * w, -1)),
    "swiglu": (lambda x, w: kernels.swiglu(x, x * w), lambda x, w: F.silu(x) * x * w),
}


def check_function_transforms():
    def loss(function, x, w):
        return function(x, w).square().sum()

    for name, pair in PAIRS.items():
        for transform in (
            lambda f: torch.func.grad(f, argnums=(0, 1))(ROWS, WEIGHT),
            lambda f: torch.func.vmap(torch.func.grad(f, argnums=(0, 1)), (0, None))(ROWS, WEIGHT),
            lambda f: (torch.func.grad(lambda x: torch.func.vmap(lambda row: f(row, WEIGHT))(x).sum())(ROWS),),
            lambda f: (torch.func.jacrev(f)(ROWS, WEIGHT),),
        ):
            one, other = (transform(functools.partial(loss, function)) for function in pair)
            for actual, expected in zip(one, other, strict=True):
                close(actual, expected, 1e-5), name
    labels = targets(6, 16)
    one, other = (
        torch.func.grad(functools.partial(call, target=labels))(ROWS[:, 0])
        for call in (kernels.cross_entropy, F.cross_entropy)
    )
    close(one, other, 1e-5)
    twice = torch.func.grad(lambda x: torch.func.grad(lambda y: kernels.softmax(y).square().sum())(x).sum())
    for refused in (lambda: twice(ROWS), lambda: torch.func.jvp(kernels.softmax, (ROWS,), (ROWS,))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PyTorch's own making
                refused()
        except RuntimeError as error:
            assert "differentiable once, in reverse mode" in str(error)
        else:
            raise AssertionError("not refused")


@functools.cache
def mesh():
    """Two ranks, of which this one is the first: collectives do nothing."""
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    return init_device_mesh("cpu", (2,))


def check_dtensors_stay_sharded_on_rows():
    def part(tensor, place):
        return DTensor.from_local(tensor.detach(), mesh(), (place,), run_check=False).requires_grad_()

    for name, (ours, plain) in PAIRS.items():
        x, w = part(ROWS, Shard(0)), part(WEIGHT, Replicate())
        y = ours(x, w)
        dx, dw = grads(y.square().sum(), (x, w))
        assert y.placements == dx.placements == (Shard(0),), f"{name}: {y.placements}, {dx.placements}"
        assert dw.placements == (Partial(),), f"{name}: {dw.placements}"
        close(y.to_local(), plain(ROWS, WEIGHT), 1e-5)
    assert kernels.gelu(part(ROWS, Shard(2))).placements == (Shard(2),)
    with torch.no_grad():
        assert kernels.row_sum(part(ROWS, Shard(0)).detach()).placements == (Shard(0),)
    # Each normalized row is spread over the ranks here.
    assert PAIRS["rms_norm"][0](part(ROWS[..., :8], Shard(2)), part(WEIGHT, Replicate())).placements == (Replicate(),)
    try:
        kernels.matmul(part(ROWS[0], Shard(0)), part(draw(16, 16), Replicate()))
    except RuntimeError as error:
        assert "takes no DTensor: call it with the local parts, x.to_local()" in str(error)
    else:
        raise AssertionError("a product of DTensors was taken")


class Block(torch.nn.Module):
    """A layer of a model, by this library's functions or PyTorch's."""

    def __init__(self, ours):
        super().__init__()
        self.norm = (kernels.RMSNorm if ours else torch.nn.RMSNorm)(16, eps=1e-6)
        self.up, self.down = (torch.nn.Linear(16, 16, bias=False) for _ in range(2))
        self.activation = kernels.swiglu if ours else lambda gate, up: F.silu(gate) * up

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(self.activation(self.up(y), y))


def blocks():
    torch.manual_seed(0)
    ours, plain = Block(True), Block(False)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def check_sharded_parameters_and_recomputed_activations():
    ours, plain = blocks()
    x = draw(3, 5, 16)
    plain(x).square().sum().backward()
    checkpoint(ours, x, use_reentrant=False).square().sum().backward()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        close(one.grad, other.grad, 1e-5)
    sharded = blocks()[0]
    fully_shard(sharded, mesh=mesh())
    checkpoint(sharded, x, use_reentrant=False).square().sum().backward()
    for one, other in zip(sharded.parameters(), plain.parameters(), strict=True):
        assert one.grad.placements == (Shard(0),) and one.grad.shape == other.shape


def check_dynamic_shapes_compile_once():
    weight, head = draw(16, seed=1, grad=True), draw(9, 16, seed=2, grad=True)
    graphs = []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    def step(x, target):
        y = kernels.softmax(kernels.layer_norm(kernels.swiglu(kernels.rms_norm(x, 16, weight), x), 16))
        return kernels.cross_entropy(kernels.matmul(kernels.gelu(y), head.mT), target)

    compiled = torch.compile(step, backend=backend, dynamic=True, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (5, 6, 11):
            x, target = draw(rows, 16), targets(rows, 9)
            close(compiled(x, target), step(x, target))
    assert len(graphs) == 1, f"{len(graphs)} graphs"


def check_opinfo_samples():
    compare_with_opinfo(torch.float32, "cpu")


def check_operators_are_described_as_they_behave():
    """Schema, shape functions, autograd registration, and what tracing makes of them."""
    for name, arguments in operator_calls("cpu").items():
        try:
            torch.library.opcheck(getattr(torch.ops.tilescope, name).default, arguments)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from None
