"""Kernels that are PyTorch operators, interpreted as in batch_interpreted. Run by test_interpreted."""

from __future__ import annotations

import warnings

# First: it switches the interpreter on.
from batch_interpreted import INF, NAN, SPECS, against_reference, close, draw, main, poisoned  # isort: skip

import torch
import torch.nn.functional as F
from tilescope_kernels import (
    CrossEntropyLoss,
    LinearCrossEntropy,
    RMSNorm,
    RoPE,
    SwiGLUMLP,
    add_rms_norm,
    cross_entropy,
    geglu,
    gelu,
    histogram,
    histogram_naive,
    layer_norm,
    linear_cross_entropy,
    online_max,
    rms_norm,
    rope,
    row_sum,
    swiglu,
)

#: One small workload of each kernel, ragged where it can be.
SMALL = {
    "gelu": "4099-fp32",
    "swiglu": "9x333-fp32",
    "geglu": "9x333-fp32",
    "rope": "2x7x3x5x20-fp32",
    "row_sum": "9x333-fp32",
    "online_max": "9x333-fp32",
    "histogram": "4099x100x50-int32",
    "rms_norm": "9x333-fp32",
    "cross_entropy": "9x333-fp32",
    "linear_cross_entropy": "70x13x37-fp32",
}
SPECIAL = (NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 100.0, -100.0, 1e6, -1e6)


def grads(out, leaves, upstream=None):
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if upstream is None else upstream)


def targets(rows: int, classes: int) -> torch.Tensor:
    values = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(3))
    values[1::4] = -100
    return values


def check_small_workloads_and_that_every_element_is_written():
    with poisoned():
        for name, workload in SMALL.items():
            against_reference(name, workload)
        against_reference("histogram", SMALL["histogram"], impl="naive")
        against_reference("cross_entropy", SMALL["cross_entropy"], impl="two_passes")


def check_every_config():
    for name, workload in SMALL.items():
        for config in SPECS[name].implementations["triton"].configs:
            against_reference(name, workload, config=config)


def check_gelu():
    for approximate in ("none", "tanh"):
        leaf = draw(30, 41, grad=True)
        twin = leaf.detach().double().requires_grad_()
        actual, wanted = gelu(leaf.T, approximate), F.gelu(twin.T, approximate=approximate)
        close(actual, wanted)
        close(*(grads(out.pow(2), of)[0] for out, of in ((actual, leaf), (wanted, twin))), 1e-6)
        # PyTorch's vectorised CPU code makes NaN of the exact form's infinity; its CUDA code and the formula do not.
        x = torch.tensor(SPECIAL)
        close(gelu(x, approximate), SPECS["gelu"].implementations["eager"].call(x, approximate))


def check_gated_halves_of_one_projection_are_read_in_place():
    for ours, activation in ((swiglu, F.silu), (geglu, lambda x: F.gelu(x, approximate="tanh"))):
        leaf = draw(3, 6, 2100, grad=True)
        twin = leaf.detach().double().requires_grad_()
        gate, up = twin.chunk(2, -1)
        actual, wanted = ours(*leaf.chunk(2, -1)), activation(gate) * up
        close(actual, wanted)
        close(*(grads(out.pow(2), of)[0] for out, of in ((actual, leaf), (wanted, twin))), 1e-6)
        x, y = torch.tensor(SPECIAL), torch.ones(len(SPECIAL))
        close(ours(x, y), activation(x) * y)


def check_swiglu_mlp_matches_linear_layers():
    module = SwiGLUMLP(6, 10)
    x = draw(4, 6)
    state = {name: value.double() for name, value in module.state_dict().items()}
    gate, up = (F.linear(x.double(), state[f"{name}_proj.weight"]) for name in ("gate", "up"))
    close(module(x), F.linear(F.silu(gate) * up, state["down_proj.weight"]), 1e-6)


def rotation(batch: int, tokens: int, columns: int):
    angles = draw(batch, tokens, columns // 2, seed=5).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


def check_rope_shapes_strides_and_tables():
    for batch, q_heads, k_heads, tokens, columns in ((1, 1, 1, 1, 2), (2, 20, 3, 5, 12), (2, 3, 9, 4, 128)):
        for shared in (1, batch):
            cos, sin = rotation(shared, tokens, columns)
            q, k = draw(batch, q_heads, tokens, columns), draw(batch, tokens, k_heads, columns, seed=1).transpose(1, 2)
            wanted = SPECS["rope"].reference(q.double(), k.double(), cos.double(), sin.double())
            for actual, expected in zip(rope(q, k, cos, sin), wanted, strict=True):
                close(actual, expected)
    # Tables whose halves differ, as the formula allows.
    cos, sin = draw(1, 4, 128, seed=6), draw(1, 4, 128, seed=7)
    leaf, twin = draw(2, 3, 4, 128, grad=True), draw(2, 3, 4, 128).double().requires_grad_()
    out = rope(leaf, leaf, cos, sin)[0]
    expected = SPECS["rope"].reference(twin, twin, cos.double(), sin.double())[0]
    close(*(grads(o.pow(2), of)[0] for o, of in ((out, leaf), (expected, twin))), 1e-6)


def check_rope_in_place():
    cos, sin = rotation(1, 5, 12)
    q, k = draw(2, 3, 5, 12, grad=True), draw(2, 2, 5, 12, seed=1, grad=True)
    q_in, k_in = q * 1.0, k * 1.0
    q_out, k_out = rope(q_in, k_in, cos, sin, inplace=True)
    assert q_out.data_ptr() == q_in.data_ptr() and k_out.data_ptr() == k_in.data_ptr()
    apart = rope(q, k, cos, sin)
    for one, other in zip((q_out, k_out), apart, strict=True):
        assert torch.equal(one, other)
    upstream = draw(2, 3, 5, 12, seed=8)
    close(grads(q_out, q, upstream)[0], grads(apart[0], q, upstream)[0])


def check_rope_invariants():
    """Rotation keeps the norm, and products of rotated vectors depend on the distance of their positions alone."""
    module = RoPE(16, theta=100.0)
    q, k = draw(1, 1, 1, 16).expand(1, 1, 9, 16), draw(1, 1, 1, 16, seed=1).expand(1, 1, 9, 16)
    q_out, k_out = module(q, k)
    close(q_out.norm(dim=-1), q.norm(dim=-1), 1e-6)
    products = (q_out @ k_out.mT)[0, 0]
    close(products[1:, 1:], products[:-1, :-1], 1e-5)
    later = module(q, k, torch.arange(9)[None] + 3)[0]
    close(later[:, :, :6], q_out[:, :, 3:], 1e-5)


def check_reductions_of_any_shape():
    for shape in ((1, 1), (7, 5), (3, 9000), (2, 3, 70), (9, 3), (9, 2051)):
        x = draw(*shape)
        close(row_sum(x), x.double().sum(-1), 1e-5)
        largest, lse = online_max(x)
        assert torch.equal(largest, x.amax(-1))
        close(lse, x.double().logsumexp(-1))
    x = draw(40, 30).T
    close(row_sum(x), x.double().sum(-1), 1e-6)
    close(online_max(x[:, ::2])[1], x[:, ::2].double().logsumexp(-1))
    for columns in (1, 7, 9, 1003):  # rows that start at every distance from 16 bytes
        half = draw(9, columns).half()
        assert torch.equal(online_max(half)[0], half.amax(-1))
        close(online_max(half)[1], half.double().logsumexp(-1), 1e-3)
    assert torch.equal(row_sum(torch.empty(3, 0)), torch.zeros(3))
    assert row_sum(torch.empty(0, 3)).shape == online_max(torch.empty(0, 3))[0].shape == (0,)


def unusual(columns):
    x = draw(8, columns)
    x[0] = -INF
    x[1, 5] = NAN
    x[2, 4] = INF
    x[3, :2000] = -INF
    x[4] = 3e38
    return x


def check_online_max_special_values():
    for columns in (3000, 3001):
        x = unusual(columns)
        x[5, 7], x[5, 8] = -INF, INF
        x[6, columns - 1], x[7, 0] = NAN, INF
        for actual, wanted in zip(online_max(x), (x.amax(-1), x.logsumexp(-1)), strict=True):
            torch.testing.assert_close(actual, wanted, equal_nan=True)


def check_histogram_counts_what_is_in_range():
    x = torch.randint(-5, 50, (7, 999), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    wanted = torch.tensor([int((x == value).sum()) for value in range(40)], dtype=torch.int32)
    assert torch.equal(histogram(x, 40), wanted)
    assert torch.equal(histogram_naive(x.T, 40), wanted)
    for bins in (0, 1):
        assert torch.equal(histogram(x, bins), wanted[:bins])
    assert not histogram(x[:0], 40).any()


def check_rms_norm_rows():
    # Reread beside the sums (over 8192 columns), and sums by columns (over 16384).
    for shape in ("1x1024", "40x8", "600x33", "3x9000", "18x16400"):
        against_reference("rms_norm", f"{shape}-fp32")


def check_rms_norm_options():
    shape, x, weight = (4, 5), draw(3, 4, 5), draw(4, 5, seed=1)
    for w, eps in ((None, None), (weight, None), (weight, 1e-2)):
        leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
        actual = rms_norm(leaf, shape, w, eps)
        # The default epsilon is that of the precision of the computation, which must not be fp64 here.
        epsilon = torch.finfo(torch.float32).eps if eps is None else eps
        wanted = F.rms_norm(twin, shape, None if w is None else w.double(), epsilon)
        close(actual, wanted)
        close(*(grads(out.pow(3), of)[0] for out, of in ((actual, leaf), (wanted, twin))), 1e-5)
    wide = draw(6, 100)
    close(rms_norm(wide[:, 10:60], 50), F.rms_norm(wide[:, 10:60].double(), (50,), eps=1e-7))
    close(rms_norm(wide.T, 6), F.rms_norm(wide.T.double(), (6,), eps=1e-7))
    special = torch.tensor([[NAN, 1.0], [INF, 1.0], [0.0, 0.0], [1e-30, -1e-30]])
    close(rms_norm(special, 2), F.rms_norm(special, (2,)))


def check_rms_norm_module_and_gradients_are_the_same_every_time():
    ours, theirs = RMSNorm(48, eps=1e-5), torch.nn.RMSNorm(48, eps=1e-5).double()
    with torch.no_grad():
        ours.weight.copy_(draw(48, seed=3))
    theirs.load_state_dict(ours.state_dict())
    x = draw(300, 48)
    first = grads(ours(x).pow(3), ours.weight)[0]
    close(first, grads(theirs(x.double()).pow(3), theirs.weight)[0], 1e-5)
    assert torch.equal(first, grads(ours(x).pow(3), ours.weight)[0])


def check_cross_entropy_options():
    target = targets(15, 11).reshape(3, 5)
    for reduction in ("none", "mean", "sum"):
        for smoothing in (0.0, 0.1, 1.0):
            for at_once in (False, True):
                leaf = draw(3, 11, 5, grad=True)
                twin = leaf.detach().double().requires_grad_()
                options = {"reduction": reduction, "label_smoothing": smoothing}
                actual = cross_entropy(leaf, target, **options, gradient_in_forward=at_once)
                wanted = F.cross_entropy(twin, target, **options)
                close(actual, wanted, 1e-6)
                upstream = draw(*wanted.shape, seed=4)
                close(grads(actual, leaf, upstream)[0], grads(wanted, twin, upstream.double())[0], 1e-5)


def check_cross_entropy_shapes():
    for rows, classes in ((1, 1), (3, 9000), (5, 10)):
        for impl in ("triton", "two_passes"):
            against_reference("cross_entropy", f"{rows}x{classes}-fp32", impl=impl)
    x, target = draw(12, 40), targets(12, 12)
    close(cross_entropy(x[:, 7:19], target.int()), F.cross_entropy(x[:, 7:19].double(), target), 1e-6)
    close(cross_entropy(x.T[:12, :12], target), F.cross_entropy(x.T[:12, :12].double(), target), 1e-6)
    close(cross_entropy(x[0], torch.tensor(3)), F.cross_entropy(x[0].double(), torch.tensor(3)))
    ignoring = CrossEntropyLoss(ignore_index=2, reduction="sum")
    every = torch.arange(12) % 4
    close(ignoring(x, every), F.cross_entropy(x.double(), every, ignore_index=2, reduction="sum"), 1e-6)


def check_losses_of_rows_that_start_anywhere():
    for classes in (1, 3, 7, 9, 523, 2051):
        for dtype in (torch.float32, torch.float16):
            x = draw(9, classes).to(dtype)
            target = targets(9, classes)
            target[0], target[4], target[8] = classes - 1, -100, 0
            for at_once in (False, True):
                leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
                options = {"label_smoothing": 0.1, "reduction": "sum"}
                actual = cross_entropy(leaf, target, **options, gradient_in_forward=at_once)
                wanted = F.cross_entropy(twin, target, **options)
                close(actual, wanted, 1e-3 if dtype == torch.float16 else 1e-6)
                close(grads(actual, leaf)[0], grads(wanted, twin)[0], 1e-3 if dtype == torch.float16 else 1e-5)
    # Rows of the logits and of their gradient do not start alike.
    for x in (draw(12, 41)[:, 3:20], draw(12, 44)[:, 1:18], draw(12, 41)[:, :16]):
        target = targets(12, x.shape[1])
        leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
        viewed = torch.cat((leaf, leaf.detach()), 1)[:, : x.shape[1]]
        for at_once in (False, True):
            loss = cross_entropy(viewed, target, gradient_in_forward=at_once)
            wanted = F.cross_entropy(twin, target)
            close(loss, wanted, 1e-6)
            close(torch.autograd.grad(loss, leaf, retain_graph=True)[0], grads(wanted, twin)[0], 1e-5)


def check_cross_entropy_special_values():
    special_values(3000)
    special_values(3001)


def special_values(columns):
    x = unusual(columns)
    target = torch.tensor([0, 0, 0, 2500, 0, 1, 2, -100])
    for at_once in (False, True):
        leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
        actual = cross_entropy(leaf, target, reduction="none", gradient_in_forward=at_once)
        wanted = F.cross_entropy(twin, target, reduction="none")
        torch.testing.assert_close(actual, wanted.float(), equal_nan=True)
        close(grads(actual, leaf)[0], grads(wanted, twin)[0], 1e-6)
    ignored = torch.full((8,), -100)
    leaf = x.clone().requires_grad_()
    loss = cross_entropy(leaf, ignored)
    assert loss.isnan() and not grads(loss, leaf)[0].any()
    assert cross_entropy(x[5:7], torch.tensor([columns, 1]), reduction="none").isnan().tolist() == [True, False]
    assert cross_entropy(x[:0], target[:0]).isnan() and cross_entropy(x[:0], target[:0], reduction="sum") == 0


def check_a_gradient_computed_at_once_serves_every_backward_pass():
    target = targets(4, 9)
    leaf, twin = draw(4, 9, grad=True), draw(4, 9).double().requires_grad_()
    loss, wanted = cross_entropy(leaf, target), F.cross_entropy(twin, target)
    (expected,) = torch.autograd.grad(wanted, twin)
    for factor in (3.0, 1.0, 0.0, 2.0):
        (found,) = torch.autograd.grad(loss * factor, leaf, retain_graph=True)
        close(found, factor * expected, 1e-5)
    for factor in (1.0, 2.0):
        (factor * cross_entropy(leaf, target)).backward()
    close(leaf.grad, 3.0 * expected, 1e-5)


def check_linear_cross_entropy_options():
    target = targets(70, 37)
    for reduction in ("mean", "sum"):
        for smoothing in (0.0, 0.1):
            leaves = [draw(70, 13, grad=True), draw(37, 13, seed=1, grad=True), draw(37, seed=2, grad=True)]
            twins = [leaf.detach().double().requires_grad_() for leaf in leaves]
            options = {"reduction": reduction, "label_smoothing": smoothing}
            config = {"CHUNK": 16, "ACCESSES": 1, "num_warps": 1}
            actual = linear_cross_entropy(*leaves[:2], target, linear_bias=leaves[2], **options, config=config)
            wanted = F.cross_entropy(F.linear(*twins), target, **options)
            close(actual, wanted, 1e-6)
            for one, other in zip(grads(actual * 2.5, leaves), grads(wanted * 2.5, twins), strict=True):
                close(one, other, 1e-5)


def check_linear_cross_entropy_chunks_fit_their_memory():
    from tilescope_kernels.losses.linear_cross_entropy import _ALIGNED, _chunks

    for rows, columns, classes in ((8192, 4096, 128256), (781, 130, 1823), (3000, 7, 50000), (5, 9, 1), (0, 4, 9)):
        for lent in (True, False):
            chunks, scratch = _chunks(rows, columns, classes, lent, 0)
            assert [row for part in chunks for row in range(part.start, part.stop)] == list(range(rows))
            held = (rows * columns if lent else 0) + _ALIGNED + scratch * classes
            for part in chunks:
                behind = -(-part.stop * columns // _ALIGNED) * _ALIGNED if lent else 0
                assert behind + (part.stop - part.start) * classes <= held
    sizes = [part.stop - part.start for part in _chunks(8192, 4096, 128256, True, 0)[0]]
    assert sizes[0] == 496 and sizes == sorted(sizes, reverse=True)


def check_linear_cross_entropy_gradients_only_where_wanted():
    x, weight, target = draw(2, 9, 13), draw(37, 13, seed=1), targets(18, 37).reshape(2, 9)
    wanted = F.cross_entropy(
        F.linear(x.double(), weight.double()).reshape(18, 37), target.reshape(18), reduction="none"
    )
    close(linear_cross_entropy(x, weight, target, reduction="none"), wanted.reshape(2, 9), 1e-6)
    for which in (0, 1):
        pair = [x.clone(), weight.clone()]
        twins = [x.double(), weight.double()]
        pair[which].requires_grad_()
        twins[which].requires_grad_()
        loss = F.cross_entropy(F.linear(*twins).reshape(18, 37), target.reshape(18))
        close(grads(linear_cross_entropy(*pair, target), pair[which])[0], grads(loss, twins[which])[0], 1e-5)
    head = LinearCrossEntropy(13, 37, label_smoothing=0.1)
    logits = F.linear(x, head.weight).reshape(18, 37)
    close(head(x, target), F.cross_entropy(logits.double(), target.reshape(18), label_smoothing=0.1), 1e-6)
    empty = x[:0].clone().requires_grad_()
    gradients = grads(linear_cross_entropy(empty, head.weight, target[:0], reduction="sum"), (empty, head.weight))
    assert gradients[0].shape == empty.shape and not gradients[1].any()


def check_norms_take_fp32_weights_beside_16_bits():
    """As where activations are autocast and parameters are not: gradients have the dtype of what they belong to."""
    x, residual = draw(6, 40).half(), draw(6, 40, seed=1)
    weight, bias = draw(40, seed=2, grad=True), draw(40, seed=3, grad=True)
    for ours, plain, leaves in (
        (lambda x: layer_norm(x, 40, weight, bias), lambda x, w, b: F.layer_norm(x, (40,), w, b), (weight, bias)),
        (lambda x: rms_norm(x, 40, weight, 1e-6), lambda x, w: F.rms_norm(x, (40,), w, 1e-6), (weight,)),
    ):
        leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
        twins = [tensor.detach().double().requires_grad_() for tensor in leaves]
        actual, wanted = ours(leaf), plain(twin, *twins)
        assert actual.dtype == torch.float16
        close(actual, wanted, 2e-3)
        found = grads(actual.float().pow(2), (leaf, *leaves))
        assert [one.dtype for one in found] == [torch.float16, *(torch.float32 for _ in leaves)]
        for one, other in zip(found, grads(wanted.pow(2), (twin, *twins)), strict=True):
            close(one, other, 4e-3)
    leaf, stream = x.clone().requires_grad_(), residual.clone().requires_grad_()
    normed, total = add_rms_norm(leaf, stream, weight)
    assert normed.dtype == total.dtype == torch.float32
    close(total, x.double() + residual.double(), 1e-6)
    found = grads(normed.pow(2).sum() + total.sum(), (leaf, stream, weight))
    assert [one.dtype for one in found] == [torch.float16, torch.float32, torch.float32]
    twin = stream.detach().double().requires_grad_()
    wide = x.double() + twin
    wanted = F.rms_norm(wide, (40,), weight.detach().double(), 1e-6).pow(2).sum() + wide.sum()
    close(found[1], grads(wanted, twin)[0], 1e-5)
    try:
        layer_norm(x, 40, weight.bfloat16())
    except ValueError as error:
        assert "weight is torch.bfloat16 but x is torch.float16" in str(error)
    else:
        raise AssertionError("bf16 beside fp16 was taken")


def check_losses_under_autocast_are_fp32_and_their_products_are_not():
    x, weight, target = draw(6, 40, grad=True), draw(9, 40, seed=1, grad=True), targets(6, 9)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = linear_cross_entropy(x, weight, target)
        logits = F.linear(x, weight)
        assert logits.dtype == torch.float16
        assert loss.dtype == torch.float32 == cross_entropy(logits, target).dtype
    found = grads(loss, (x, weight))
    twins = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    wanted = F.cross_entropy(F.linear(*twins), target)
    close(loss, wanted, 1e-3)
    for one, other in zip(found, grads(wanted, twins), strict=True):
        assert one.dtype == torch.float32
        close(one, other, 4e-3)


def check_a_gradient_that_came_with_the_loss_has_no_second_derivative():
    x, weight, target = draw(6, 10, grad=True), draw(7, 10, seed=1, grad=True), targets(6, 7)

    def penalty(loss):
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        torch.autograd.grad(gradient.sum(), x)

    for loss, said in (
        (linear_cross_entropy(x, weight, target), "has no second derivative"),
        (cross_entropy(x, target), "no autograd formula was registered"),
        (cross_entropy(x, target, gradient_in_forward=False), "no autograd formula was registered"),
    ):
        try:
            penalty(loss)
        except RuntimeError as error:
            assert said in str(error), error
        else:
            raise AssertionError("a penalty on this gradient would have none")


def check_operators_are_described_as_they_behave():
    """Schema, shape functions, autograd registration, and what tracing makes of them."""
    ops = torch.ops.tilescope
    x, y, w = draw(6, 10, grad=True), draw(6, 10, seed=1, grad=True), draw(10, seed=2, grad=True)
    q, k = draw(2, 3, 5, 12, grad=True), draw(2, 2, 5, 12, seed=1, grad=True)
    head, target = draw(7, 10, grad=True), targets(6, 7)
    calls = {
        "vector_add": (x.detach(), y.detach(), ""),
        "add_relu_mul": (x.detach(), y.detach(), 1.5, ""),
        "matmul": (x, draw(10, 7, grad=True), ""),
        "gelu": (x, 1, ""),
        "gelu_backward": (x.detach(), y.detach(), 2, ""),
        "gated": (x, y, 0, ""),
        "gated_backward": (x.detach(), x.detach(), y.detach(), 2, ""),
        "rope": (q, k, *rotation(1, 5, 12), False, ""),
        "rope_": (q.detach().clone(), k.detach().clone(), *rotation(1, 5, 12), True, ""),
        "row_sum": (x.detach(), ""),
        "online_max": (x.detach(), ""),
        "histogram": (targets(20, 9).int(), 9, False, ""),
        "rms_norm": (x, w, 1e-6, True, ""),
        "rms_norm_backward": (x.detach(), y.detach(), w.detach(), y.detach()[:, 0].contiguous(), True, ""),
        "cross_entropy": (x, target, -100, 0.1, 1, torch.float32, True, ""),
        "cross_entropy_with_gradient": (x, target, -100, 0.1, 1, torch.float32, ""),
        "scale_rows_": (x.detach().clone(), y.detach()[:, 0].contiguous()),
        "linear_cross_entropy": (x, head, None, target, -100, 0.0, 1, torch.float32, True, True, False, ""),
    }
    for name, arguments in calls.items():
        try:
            torch.library.opcheck(getattr(ops, name).default, arguments)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from None


def check_functions_compile_whole():
    """Forward and backward under ``torch.compile(fullgraph=True)``, without generating code."""
    x, y, w = draw(6, 10, grad=True), draw(6, 10, seed=1, grad=True), draw(10, seed=2, grad=True)
    q, k = draw(2, 3, 5, 12, grad=True), draw(2, 2, 5, 12, seed=1, grad=True)
    head, target, cos, sin = draw(7, 10, seed=4, grad=True), targets(6, 7), *rotation(1, 5, 12)

    def everything():
        normed = rms_norm(swiglu(x, y) + geglu(y, x) + gelu(x), 10, w)
        q_out, k_out = rope(q, k, cos, sin)
        q_in, k_in = rope(q * 2.0, k * 2.0, cos, sin, inplace=True)
        loss = cross_entropy(normed, target) + cross_entropy(normed, target, gradient_in_forward=True)
        loss = loss + linear_cross_entropy(normed, head, target)
        reductions = row_sum(x.detach()) + online_max(x.detach())[1]
        return loss + (q_out * q_in).sum() + (k_out + k_in).square().sum(), reductions, histogram(target.int(), 7)

    compiled = torch.compile(everything, backend="aot_eager", fullgraph=True)
    leaves = [x, y, w, q, k, head]
    with warnings.catch_warnings():
        # Of dynamo's own making.
        warnings.filterwarnings("ignore", "<class 'torch.autograd.function.Function'> should not be instantiated")
        results = compiled()
    for one, other in zip(results, everything(), strict=True):
        close(one, other)
    for one, other in zip(grads(compiled()[0], leaves), grads(everything()[0], leaves), strict=True):
        close(one, other)


if __name__ == "__main__":
    main(globals())
