"""Loaded values that are reduced and used again are held in registers: a config with too few is not compiled to the end."""

import pytest
import torch
import triton
import triton.language as tl
from tilescope.collectors import assembly
from tilescope.execution import launches, offline
from tilescope.tuning import compile_jobs, early_resources, held_registers, pruning


@triton.jit
def rows_kernel(x_ptr, y_ptr, HOW: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + at).to(tl.float32)
    if HOW == "softmax":
        e = tl.exp(x - tl.max(x, 0))
        y = e / tl.sum(e, 0)
    elif HOW == "centred":
        centred = x - tl.sum(x, 0) / COLUMNS
        y = centred * tl.rsqrt(tl.sum(centred * centred, 0))
    elif HOW == "loaded again":
        largest = tl.max(x, 0)
        y = tl.exp(tl.load(x_ptr + at, cache_modifier=".cg").to(tl.float32) - largest)
    elif HOW == "rounded":
        y = (x > 0.0).to(tl.float32) * tl.sum(x, 0)
    elif HOW == "summed":
        y = tl.sum(x, 0) + tl.zeros((COLUMNS,), tl.float32)
    else:
        y = tl.exp(x)
    tl.store(y_ptr + at, y)


def needs(monkeypatch, tmp_path, how, columns, dtype):
    """The held registers that a compilation finds before it is ended."""
    found: list[dict[str, int]] = []

    def end(target, **needs):
        found.append(needs)
        return "that is all"

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pruning, "refusal", end)
    x = torch.empty(columns, dtype=dtype, device="meta")
    with launches.catch() as caught:
        rows_kernel[(1,)](x, x, HOW=how, COLUMNS=columns, num_warps=1)
    with offline.targeting("sm_90"), early_resources.refusing(), pytest.raises(early_resources.Refused):
        offline.compile_launch(caught[0])
    return found[0]["held"]


@pytest.mark.parametrize(
    ("how", "dtype", "registers"),
    [
        ("softmax", torch.bfloat16, 128), ("softmax", torch.float32, 256), ("centred", torch.bfloat16, 128),
        ("loaded again", torch.bfloat16, 0), ("rounded", torch.bfloat16, 8), ("summed", torch.float32, 0),
        ("elementwise", torch.float32, 0),
    ],
)  # fmt: skip
def test_a_row_is_held_as_it_was_loaded_or_in_less(how, dtype, registers, monkeypatch, tmp_path):
    assert needs(monkeypatch, tmp_path, how, 8192, dtype) == registers


def test_a_name_that_a_block_uses_again_is_another_value():
    loaded = "%x = tt.load %p : tensor<8192x!tt.ptr<f32>, #b>"
    used = "%y = arith.subf %x, %b : tensor<8192xf32, #b>"
    lines = [loaded, '%m = "tt.reduce"(%x) <{axis = 0 : i32}> ({', "%b = tt.splat %m : f32 -> tensor<8192xf32, #b>"]
    again = "%x = arith.constant dense<1.0> : tensor<8192xf32, #b>"
    text = "tt.func public @k() {\n{}\n}"
    assert held_registers.held(text.replace("{}", "\n".join([*lines, used])), 1) == 256
    assert held_registers.held(text.replace("{}", "\n".join([*lines, again, used])), 1) == 0


def test_what_is_refused_would_have_spilled(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x = torch.empty(8192, device="meta")
    with launches.catch() as caught:
        rows_kernel[(1,)](x, x, HOW="softmax", COLUMNS=8192, num_warps=1)
    with offline.targeting("sm_90"):
        with early_resources.refusing(), pytest.raises(early_resources.Refused) as refused:
            offline.compile_launch(caught[0])
        kernel = offline.compile_launch(caught[0])
    assert str(refused.value) == "256 registers a thread for what is reduced and used again, 255 exist: spills"
    report = compile_jobs._report(kernel.asm["ptx"], kernel.metadata, 90)
    assert assembly.resources(report, kernel.metadata.name).spill_bytes_stored > 0
