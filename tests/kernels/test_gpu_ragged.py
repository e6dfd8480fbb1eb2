"""Attention of packed sequences on a GPU against fp64: lengths, columns, dtypes, special values, peers."""

from itertools import accumulate

import pytest
import torch
from tilescope_kernels import ragged_attention
from tilescope_kernels.attention.ragged import SPEC, _composed

from . import on_gpu
from .checks import INF, NAN, relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LENGTHS = {
    "same": ((300, 1, 0, 517, 64), (300, 1, 0, 517, 64)),
    "more_keys": ((300, 1, 0, 128, 64, 3), (1000, 1, 7, 517, 65, 0)),
    "more_queries": ((300, 129, 5, 517), (3, 128, 0, 257)),
    "many": ((17,) * 300, (17,) * 300),
    "one": ((2000,), (2000,)),
}


def packed(lengths, shape, dtype=torch.bfloat16, more=0):
    (queries, keys), (heads, kv_heads, columns) = lengths, shape
    shapes = (sum(queries) + more, heads), *[(sum(keys) + more, kv_heads)] * 2
    return [draw(*shape, columns, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]


def bounds(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")


def compare(tensors, queries, keys, tolerance, *, is_causal, **options):
    ours = [tensor.detach().requires_grad_() for tensor in tensors]
    twins = [tensor.detach().double().requires_grad_() for tensor in tensors]
    where = bounds(queries), bounds(keys)
    expected = _composed(*twins, *where, is_causal, tensors[0].shape[2] ** -0.5)
    upstream = draw(*expected.shape, seed=9)
    wanted = torch.autograd.grad(expected, twins, upstream.double())
    for _ in range(3):  # the third makes the launches of the second again
        actual = ragged_attention(*ours, *where, max(queries), max(keys), is_causal=is_causal, **options)
        found = torch.autograd.grad(actual, ours, upstream.to(actual.dtype))
        assert relative_error(actual, expected) <= tolerance
        for name, one, other in zip(("query", "key", "value"), found, wanted, strict=True):
            assert relative_error(one, other) <= 3 * tolerance, f"gradient of {name}"
        for tensor in (actual, *found):
            tensor.detach().fill_(NAN)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("shape", [(4, 4, 64), (6, 2, 128)])
def test_lengths(lengths, shape, causal, dtype):
    tensors = packed(LENGTHS[lengths], shape, DTYPES[dtype], more=70)
    compare(tensors, *LENGTHS[lengths], SPEC.tolerance[dtype], is_causal=causal)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("columns", [1, 13, 16, 32, 80, 96, 200, 256])
def test_columns(columns, dtype):
    tensors = packed(LENGTHS["more_keys"], (4, 2, columns), DTYPES[dtype])
    for causal in (False, True):
        compare(tensors, *LENGTHS["more_keys"], SPEC.tolerance[dtype], is_causal=causal)


@pytest.mark.parametrize("which", range(len(SPEC.implementations["triton"].configs)))
@pytest.mark.parametrize("columns", [64, 128])
def test_every_config(which, columns):
    from triton.runtime.errors import OutOfResources

    config = SPEC.implementations["triton"].configs[which]
    for causal in (False, True):
        tensors = packed(LENGTHS["more_keys"], (4, 2, columns))
        try:
            compare(tensors, *LENGTHS["more_keys"], SPEC.tolerance["bf16"], is_causal=causal, config=config)
        except OutOfResources:
            pytest.skip("needs more shared memory than this GPU has")


def test_strides():
    joint = draw(817, 3, 4, 128)
    compare(joint.unbind(1), (300, 517), (300, 517), SPEC.tolerance["bf16"], is_causal=True)
    # Rows whose starts are not 16-byte aligned, which descriptors cannot reach.
    odd = [draw(817, 4, 65, seed=seed)[..., 1:] for seed in range(3)]
    compare(odd, (300, 517), (300, 517), SPEC.tolerance["bf16"], is_causal=True)
    heads_apart = [draw(4, 817, 64, seed=seed).transpose(0, 1) for seed in range(3)]
    compare(heads_apart, (300, 517), (300, 517), SPEC.tolerance["bf16"], is_causal=False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [64, 128])
def test_special_values_stay_in_their_sequence(columns, causal):
    lengths = (300, 100, 517)
    results = []
    for spoiled in (False, True):
        ours = packed((lengths, lengths), (4, 2, columns))
        upstream = draw(917, 4, columns, seed=9)
        if spoiled:
            for tensor in (*ours, upstream):
                tensor[300:350], tensor[350:400] = NAN, INF
        ours = [tensor.requires_grad_() for tensor in ours]
        o = ragged_attention(*ours, *[bounds(lengths)] * 2, 517, 517, is_causal=causal)
        results.append([o, *torch.autograd.grad(o, ours, upstream)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one[:300], other[:300]) and torch.equal(one[400:], other[400:])
        assert one.isfinite().all() and other[300:400].isnan().any()


def test_gradients_are_the_same_every_time_and_nothing_waits_for_the_gpu():
    where = bounds((700, 1, 1347))
    leaves = [t.requires_grad_() for t in packed([(700, 1, 1347)] * 2, (8, 2, 128))]
    upstream = draw(2048, 8, 128, seed=7)

    def gradients():
        out = ragged_attention(*leaves, where, where, 1347, 1347, is_causal=True)
        return torch.autograd.grad(out, leaves, upstream)

    first = gradients()
    torch.cuda.set_sync_debug_mode("error")
    try:
        others = [gradients() for _ in range(5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for other in others:
        assert all(map(torch.equal, first, other))


def test_in_a_graph_with_other_bounds():
    tensors = packed([(1000,)] * 2, (4, 4, 64))
    where = bounds((400, 500))

    def call():
        return ragged_attention(*tensors, where, where, 1000, 1000, is_causal=True)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for lengths in ((400, 500), (1, 999), (0, 0)):
        where.copy_(bounds(lengths))
        graph.replay()
        assert torch.equal(captured, call())
        assert not captured[sum(lengths) :].any()


@pytest.mark.parametrize("impl", ["eager", "fa2", "cudnn"])
@pytest.mark.parametrize("workload", ["5x4x1x517x64-bf16", "5x2x4x517x128-bf16"])
def test_peers(impl, workload):
    inputs = SPEC.inputs(SPEC.workload(workload), "cuda")
    try:
        actual = SPEC.implementations[impl].call(**inputs)
    except (ImportError, TypeError, RuntimeError, ValueError) as error:
        pytest.skip(f"PyTorch has no {impl} here: {error}")
    doubles = {
        name: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    assert relative_error(actual, SPEC.reference(**doubles)) <= SPEC.tolerance["bf16"]


def test_compiles_whole_with_inductor():
    where = bounds((100, 1, 99))

    def block(q, k, v):
        return ragged_attention(q * 0.5, k, v, where, where, 100, 100, is_causal=True).square()

    leaves = [draw(200, 2, 64, seed=seed).requires_grad_() for seed in range(3)]
    compiled = torch.compile(block, fullgraph=True)
    torch.testing.assert_close(compiled(*leaves), block(*leaves))
    for one, other in zip(*(torch.autograd.grad(f(*leaves).sum(), leaves) for f in (compiled, block)), strict=True):
        torch.testing.assert_close(one, other)
    arguments = (*leaves, where, where, 100, 100, True, 0.125, True, "")
    torch.library.opcheck(torch.ops.tilescope.ragged_attention.default, arguments)
