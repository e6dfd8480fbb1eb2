"""A decoder with Tilescope's modules trains as its plain PyTorch twin does: gradients, and 50 steps.

Each is compared with the twin in fp64. What rounding alone costs is the plain model's own distance from that, in the
same dtype; ours may be half as far again.
"""

import math
import re

import pytest
import torch
import transformer_block as example

from . import on_gpu
from .checks import relative_error

SCRIPTS = ["batch_block.py"]


def on_a_gpu(test):
    for mark in (*on_gpu.MARKS, on_gpu.INDUCTOR):
        test = mark(test)
    return test


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SHAPE = example.Shape(classes=256, columns=64, hidden=128, heads=4, kv_heads=2, layers=2)
SEEDS, STEPS = range(2), 50
#: Of the plain model's distance: ours rounds in other places, not more often.
ALLOWED = 1.5


def models(dtype, seed, joined=True):
    """The plain model in fp64 and in ``dtype`` and ours in ``dtype``, all of the same weights, rounded to ``dtype``."""
    torch.manual_seed(seed)
    plain = example.Decoder(SHAPE).to(dtype)
    built = example.Decoder(SHAPE).double(), plain, example.TilescopeDecoder(SHAPE, joined).to(dtype)
    for model in built:
        model.load_state_dict(plain.state_dict())
        model.cuda()
    return built


def data(seed):
    return example.text(SHAPE, 2, 70, seed, "cuda")


def gradients(model, pair):
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(model(*pair), weights), strict=True))


def curve(model, pair, judge):
    """The loss at the weights of every step, computed by ``judge`` for all: a 16-bit loss would be rounded itself."""
    losses = []
    for _, weights in example.train(model, pair, STEPS, rate=1e-3):
        judge.load_state_dict(dict(zip(judge.state_dict(), weights, strict=True)))
        with torch.no_grad():
            losses.append(judge(*pair))
    return torch.stack(losses)


def assert_no_further(dtype, joined=True, compiled=False):
    """Every parameter's gradient is about as far from fp64's as the plain model's in ``dtype``, over all seeds."""
    squares = {}
    for seed in SEEDS:
        precise, plain, ours = models(dtype, seed, joined)
        if compiled:
            ours.compile(fullgraph=True)
        wanted, theirs, actual = (gradients(model, data(seed)) for model in (precise, plain, ours))
        for name, gradient in wanted.items():
            sums = squares.setdefault(name, [0.0, 0.0])
            sums[0] += relative_error(actual[name], gradient) ** 2
            sums[1] += relative_error(theirs[name], gradient) ** 2
    for name, (ours, theirs) in squares.items():
        # The plain fp32 model is off by no more than its sums' order is: ours add in another, of approximate exponentials.
        assert math.sqrt(ours) <= ALLOWED * math.sqrt(theirs) + 8 * torch.finfo(torch.float32).eps, name


def test_either_model_loads_the_other_s_weights():
    plain, ours = example.Decoder(SHAPE), example.TilescopeDecoder(SHAPE)
    assert list(plain.state_dict()) == list(ours.state_dict())
    ours.load_state_dict(plain.state_dict())
    plain.load_state_dict(ours.state_dict())


def test_gradients_of_the_interpreted_kernels(wrong):
    assert not wrong, wrong


@on_a_gpu
@pytest.mark.parametrize("joined", [True, False], ids=["linear_cross_entropy", "cross_entropy"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gradients_of_the_first_step(dtype, joined):
    precise, _, ours = models(dtype, seed=0, joined=joined)
    pair = data(0)
    torch.testing.assert_close(
        ours(*pair).double(), precise(*pair), rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps
    )
    assert_no_further(dtype, joined)


@on_a_gpu
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_fifty_steps_of_training(dtype):
    distances = {"plain": 0.0, "ours": 0.0}
    for seed in SEEDS:
        precise, plain, ours = models(dtype, seed)
        pair, judge = data(seed), example.Decoder(SHAPE).cuda().double()
        wanted = curve(precise, pair, judge)
        assert wanted[-1] < wanted[0] / 4
        for name, model in (("plain", plain), ("ours", ours)):
            distances[name] += float((curve(model, pair, judge) - wanted).square().mean())
    assert math.sqrt(distances["ours"]) <= ALLOWED * math.sqrt(distances["plain"])


@on_a_gpu
def test_compiled_decoder_has_the_same_gradients():
    assert_no_further(torch.bfloat16, compiled=True)


def test_example_prints_equal_losses(monkeypatch, capsys):
    if not torch.cuda.is_available():
        monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    for line in lines:
        plain, ours = (float(number) for number in re.findall(r"\d+\.\d+", line))
        assert abs(plain - ours) < 1e-3
