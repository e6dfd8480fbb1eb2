"""The usual baseline, and the names of implementations."""

import pytest
from tilescope.models.baseline import called, declarations, usual

SOFTMAX = {
    "eager": "max, subtract, exp, sum and divide",
    "compile": "torch.compile of eager",
    "aten": "torch.nn.functional.softmax",
}
ATTENTION = {
    "eager": "one operation at a time",
    "fa2": "PyTorch's SDPA, FlashAttention-2",
    "cudnn": "PyTorch's SDPA, cuDNN",
}


@pytest.mark.parametrize(
    ("recorded", "declared", "impl"),
    [
        (["triton", "eager", "compile", "aten"], SOFTMAX, "aten"),
        (["triton", "eager", "compile"], SOFTMAX, "eager"),
        (["triton", "compile"], SOFTMAX, "compile"),
        (["triton", "eager", "fa2"], ATTENTION, "fa2"),
        # cuBLAS on its own is not PyTorch's operator for quantized weights.
        (["eager", "cublas"], {"eager": "dequantized", "cublas": "cuBLAS with weights kept at 16 bits"}, "eager"),
        (["triton", "liger"], {}, ""),
    ],
)
def test_usual_baseline_is_pytorchs_operator(recorded: list[str], declared: dict[str, str], impl: str) -> None:
    assert usual(recorded, declared) == impl


@pytest.mark.parametrize(
    ("impl", "said", "name"),
    [
        ("aten", "torch.nn.functional.softmax", "F.softmax"),
        ("aten", "x + residual, then torch.nn.functional.rms_norm", "PyTorch"),
        ("eager", "torch.matmul (cuBLAS)", "torch.matmul"),
        ("eager", "add, relu and mul, one after the other", "unfused"),
        ("eager", "torch.nn.functional.conv2d, then ReLU", "unfused"),
        ("compile", "torch.compile of eager", "torch.compile"),
        ("liger", "Liger-Kernel's", "liger"),
        ("triton", "torch.add", "triton"),
    ],
)
def test_called_names_the_operator(impl: str, said: str, name: str) -> None:
    assert called(impl, declarations({"implementations": {impl: {"summary": said}}})) == name


def test_declarations_absent_is_empty() -> None:
    assert declarations(None) == declarations({}) == {}
