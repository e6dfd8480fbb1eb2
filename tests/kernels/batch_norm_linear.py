"""Norms fused with linear layers, in Triton's interpreter."""

import itertools

# First: it switches the interpreter on.
from interpreted import INF, NAN, SPECS, against_reference, close, draw, main, poisoned, told_apart  # isort: skip

import torch
import torch.nn.functional as F
from tilescope_kernels import layer_norm_linear, rms_norm_gelu_linear
from tilescope_kernels.norms import norm_linear

BOTH = ("layer_norm_linear", "rms_norm_gelu_linear")
CONFIGS = {name: SPECS[name].implementations["triton"].configs for name in BOTH}

#: Small tiles for fp32, with the norm behind the product whatever the shape.
TILES = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 2, "TMA": 0, "num_warps": 4, "num_stages": 2}


def check_small_workloads_and_that_every_element_is_written():
    with poisoned():
        for name in BOTH:
            for extents in ("1x1x8", "70x33x90", "5x130x64", "130x3x17"):
                against_reference(name, f"{extents}-fp32")
        for extents in ("1x1x8", "70x33x90", "5x130x64"):
            against_reference("layer_norm_linear", f"{extents}-fp32", config=TILES)


def check_every_config():
    # fp16, which descriptors serve and the interpreter computes rightly. Two programs walk over all tiles.
    module = norm_linear
    launched, module.multiprocessors = module.multiprocessors, lambda tensor: 2
    try:
        x, g, b, w, c = (draw(*s, seed=i).half() for i, s in enumerate(((150, 72), (72,), (72,), (264, 72), (264,))))
        doubles = [tensor.double() for tensor in (x, g, b, w, c)]
        wanted = F.linear(F.layer_norm(doubles[0], (72,), *doubles[1:3]), *doubles[3:])
        for config in told_apart(CONFIGS["layer_norm_linear"]):
            close(layer_norm_linear(x, g, b, w, c, config=config), wanted, 2e-3)
    finally:
        module.multiprocessors = launched
    for config in told_apart(CONFIGS["rms_norm_gelu_linear"]):
        for name in BOTH:
            against_reference(name, "9x5x70-fp32", config=config)
    for name in BOTH:
        against_reference(name, "70x5x7-fp32", config={"CHUNK": 32, "num_warps": 4})


def check_options():
    x, g, b, w, c = draw(2, 7, 20), draw(20, seed=1), draw(20, seed=2), draw(9, 20, seed=3), draw(9, seed=4)
    none = (None, None)
    for gain, shift, bias in itertools.product((None, g), (None, b), (None, c)):
        doubles = [None if t is None else t.double() for t in (gain, shift, bias)]
        wanted = F.linear(F.layer_norm(x.double(), (20,), doubles[0], doubles[1], 1e-3), w.double(), doubles[2])
        close(layer_norm_linear(x, gain, shift, w, bias, 1e-3), wanted)
        close(layer_norm_linear(x, gain, shift, w, bias, 1e-3, config=TILES), wanted)
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
    close(layer_norm_linear(x, None, None, w, config=TILES), wanted, 2e-3)


def check_a_large_mean_cancels():
    """A number added to a row changes nothing, however the product is ordered."""
    x, g, w = draw(8, 256), draw(256, seed=1), draw(40, 256, seed=2)
    wanted = F.linear(F.layer_norm(x.double(), (256,), g.double()), w.double())
    for config in (TILES, {"CHUNK": 0, "num_warps": 4}):
        close(layer_norm_linear(x + 100.0, g, None, w, config=config), wanted, 3e-4)
        close(layer_norm_linear(x * 1e4, g, None, w, config=config), wanted, 1e-5)


def check_special_values():
    x, w = draw(5, 16), draw(7, 16, seed=1)
    x[0, 3], x[1, 3], x[2] = NAN, INF, 0.0
    for config in (TILES, None):
        close(layer_norm_linear(x, None, None, w, config=config), F.linear(F.layer_norm(x, (16,)), w), 1e-5)
    close(rms_norm_gelu_linear(x, None, w), F.linear(F.gelu(F.rms_norm(x, (16,))), w), 1e-5)


def check_empty():
    w = draw(7, 16)
    for rows in ((0,), (2, 0)):
        x = torch.empty(*rows, 16)
        assert layer_norm_linear(x, None, None, w).shape == rms_norm_gelu_linear(x, None, w).shape == (*rows, 7)
    assert layer_norm_linear(draw(3, 16), None, None, w[:0]).shape == (3, 0)


if __name__ == "__main__":
    main(globals())
