"""Norms fused with linear layers, in Triton's interpreter."""

import itertools

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, SPECS, against_reference, close, draw, poisoned, told_apart
from tilescope_kernels import layer_norm_linear, rms_norm_gelu_linear

BOTH = ("layer_norm_linear", "rms_norm_gelu_linear")
CONFIGS = {name: SPECS[name].implementations["triton"].configs for name in BOTH}


def check_small_workloads_and_that_every_element_is_written():
    with poisoned():
        for name in BOTH:
            for extents in ("1x1x8", "70x33x90", "5x130x64", "130x3x17"):
                against_reference(name, f"{extents}-fp32")


def check_every_config():
    for name in BOTH:
        for config in told_apart(CONFIGS[name]):
            against_reference(name, "9x5x70-fp32", config=config)


def check_options():
    x, g, b, w, c = draw(2, 7, 20), draw(20, seed=1), draw(20, seed=2), draw(9, 20, seed=3), draw(9, seed=4)
    none = (None, None)
    for gain, shift, bias in itertools.product((None, g), (None, b), (None, c)):
        doubles = [None if t is None else t.double() for t in (gain, shift, bias)]
        wanted = F.linear(F.layer_norm(x.double(), (20,), doubles[0], doubles[1], 1e-3), w.double(), doubles[2])
        close(layer_norm_linear(x, gain, shift, w, bias, 1e-3), wanted)
        normed = F.rms_norm(x.double(), (20,), doubles[0], 1e-3)
        close(rms_norm_gelu_linear(x, gain, w, bias, 1e-3), F.linear(F.gelu(normed), w.double(), doubles[2]))
    wide = draw(6, 100)[:, 10:30]
    close(layer_norm_linear(wide, *none, w), F.linear(F.layer_norm(wide.double(), (20,)), w.double()))
    close(layer_norm_linear(x.mT.contiguous().mT, *none, w), layer_norm_linear(x, *none, w))
    close(
        rms_norm_gelu_linear(wide, None, w), F.linear(F.gelu(F.rms_norm(wide.double(), (20,), eps=1.2e-7)), w.double())
    )
    assert layer_norm_linear(x[0, 0], *none, w).shape == (9,)


def check_rows_far_apart():
    """Beyond int32 within a tile. Only the memory of the rows is ever touched."""
    apart = 2**31 // 15 + 9
    x = torch.empty(15 * apart + 24, dtype=torch.float16).as_strided((16, 24), (apart, 1))
    x.copy_(draw(16, 24))
    w = draw(9, 24, seed=1).half()
    wanted = F.linear(F.layer_norm(x.double(), (24,)), w.double())
    close(layer_norm_linear(x, None, None, w), wanted, 2e-3)


def check_a_large_mean_cancels():
    """A number added to a row changes nothing, however the product is ordered."""
    x, g, w = draw(8, 256), draw(256, seed=1), draw(40, 256, seed=2)
    wanted = F.linear(F.layer_norm(x.double(), (256,), g.double()), w.double())
    close(layer_norm_linear(x + 100.0, g, None, w), wanted, 3e-4)
    close(layer_norm_linear(x * 1e4, g, None, w), wanted, 1e-5)


def check_special_values():
    x, w = draw(5, 16), draw(7, 16, seed=1)
    x[0, 3], x[1, 3], x[2] = NAN, INF, 0.0
    close(layer_norm_linear(x, None, None, w), F.linear(F.layer_norm(x, (16,)), w), 1e-5)
    close(rms_norm_gelu_linear(x, None, w), F.linear(F.gelu(F.rms_norm(x, (16,))), w), 1e-5)


def check_empty():
    w = draw(7, 16, grad=True)
    for rows in ((0,), (2, 0)):
        x = torch.empty(*rows, 16, requires_grad=True)
        for y in (layer_norm_linear(x, None, None, w), rms_norm_gelu_linear(x, None, w)):
            assert [each.shape for each in (y, *torch.autograd.grad(y.sum(), (x, w)))] == [(*rows, 7), x.shape, w.shape]
    assert layer_norm_linear(draw(3, 16), None, None, w[:0]).shape == (3, 0)
