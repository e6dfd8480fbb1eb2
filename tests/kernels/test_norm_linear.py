"""Norms fused with linear layers: interpreted values, and what can be said without running a kernel."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope_kernels import CATALOG
from tilescope_kernels.spec import FORWARD, Workload

SCRIPTS = ["batch_norm_linear.py"]
SPECS = {spec.name: spec for spec in CATALOG}
X, G, W, C = torch.ones(3, 8), torch.ones(8), torch.ones(5, 8), torch.ones(5)


def test_interpreted(wrong):
    assert not wrong, wrong


def test_a_gpu_is_asked_for():
    with pytest.raises(ValueError, match="x is on cpu: Triton needs a CUDA device"):
        kernels.layer_norm_linear(X, G, G, W)
    with pytest.raises(ValueError, match="x is on cpu: Triton needs a CUDA device"):
        kernels.rms_norm_gelu_linear(X, G, W)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(())}, "x has no dimension"),
        ({"x": torch.ones(3, 7)}, r"weight has shape \(5, 8\): give \(columns out, 7\)"),
        ({"weight": G}, r"weight has shape \(8,\)"),
        ({"norm_weight": C}, r"norm_weight has shape \(5,\): give one number a column of x, \(8,\)"),
        ({"bias": G}, r"bias has shape \(8,\): give one number a row of weight, \(5,\)"),
        ({"weight": W.half()}, "weight is torch.float16 but x is torch.float32"),
        ({"x": torch.ones(1, 40000), "weight": torch.ones(1, 40000), "norm_weight": None}, "x has 40000 columns: give 1 to 32768"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(caught, change, message):
    arguments = {"x": X, "norm_weight": G, "weight": W, "bias": None, **change}
    with pytest.raises(ValueError, match=message):
        kernels.layer_norm_linear(norm_bias=None, **arguments)
    with pytest.raises(ValueError, match=message):
        kernels.rms_norm_gelu_linear(**arguments)
    assert not caught


def test_a_config_that_these_operands_do_not_allow_is_named():
    configs = SPECS["layer_norm_linear"].implementations["triton"].configs
    with pytest.raises(ValueError, match="config has TMA=1"):
        torch.ops.tilescope.layer_norm_linear(
            X, G, None, W, None, 1e-5, " ".join(f"{k}={v}" for k, v in configs[0].items())
        )


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    x = torch.randn(3, 8)
    torch.testing.assert_close(kernels.layer_norm_linear(x, G, None, W), torch.zeros(3, 5), atol=1e-5, rtol=0)
    normed = x / x.square().mean(-1, keepdim=True).sqrt()
    wanted = torch.nn.functional.gelu(normed).sum(-1, keepdim=True) + C
    torch.testing.assert_close(kernels.rms_norm_gelu_linear(x, None, W, C), wanted)


def test_cost_counts_every_tensor_once():
    for name in ("layer_norm_linear", "rms_norm_gelu_linear"):
        odd = Workload({"m": 3, "n": 5, "k": 7}, "fp16")
        inputs, cost = SPECS[name].inputs(odd, "cpu"), SPECS[name].cost(odd, FORWARD)
        assert cost.bytes_read == sum(t.numel() * 2 for t in inputs.values() if torch.is_tensor(t))
        assert cost.bytes_written == 3 * 5 * 2
        assert cost.pipe == "fp16" and cost.flops > 2 * 3 * 5 * 7
