"""Compiles a model's kernels ahead for an assumed GPU. Prints JSON: kernels compiled at each call, and those that it launches."""

import json
import os
import tempfile

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()

import tilescope_kernels as kernels
import torch
from tilescope.execution import launches
from tilescope.execution.assumed_device import assumed


class Model(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.norm = kernels.RMSNorm(256, device=device)

    def forward(self, x):
        return kernels.softmax(kernels.swiglu(self.norm(x), x))


def example(device):
    return Model(device), torch.empty(8, 256, device=device, requires_grad=True)


def main():
    with assumed("sm_90"):
        counts = [kernels.warm(*example("meta"), gradients=gradients) for gradients in (False, True, True)]
        with launches.catch() as caught:
            model, x = example("cuda")
            made = model(x)
            made.backward(torch.empty_like(made))
    print(json.dumps({"compiled": counts, "launched": [launch.name for launch in caught]}))
