"""The example's decoder with every kernel interpreted, in fp32, against its plain twin in fp64."""

import torch
import transformer_block as example
from interpreted import close

SHAPE = example.Shape(classes=96, columns=64, hidden=72, heads=4, kv_heads=2, layers=1)
PAIR = example.text(SHAPE, 2, 19, 0, "cpu")


def twins(joined):
    torch.manual_seed(0)
    plain, ours = example.Decoder(SHAPE), example.TilescopeDecoder(SHAPE, joined)
    ours.load_state_dict(plain.state_dict())
    return ours, plain.double()


def gradients(model):
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(model(*PAIR), weights), strict=True))


def check_gradients():
    for joined in (True, False):
        ours, wanted = (gradients(model) for model in twins(joined))
        for name, gradient in ours.items():
            close(gradient, wanted[name], 2e-6)
