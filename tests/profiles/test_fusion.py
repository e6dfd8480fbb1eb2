"""The predicted gain of fusing a chain: bytes counted by hand and in recorded runs, and every kind of bad input."""

import json

import pytest
from tilescope import cli
from tilescope.models import fusion
from tilescope.notebook import fusion_trace

MEGA = 2**20


def ask(chain, problem, target="sm_90"):
    sizes = fusion.parse_problem(problem)
    return fusion.ask(fusion.count(fusion.parse_chain(chain), sizes), sizes, target)


def line(answer, topic):
    (found,) = [entry for entry in answer.lines if entry.topic == topic]
    return found


@pytest.mark.parametrize(("chain", "unfused", "fused"), [
    # Tensors of 2 MB read and written, one launch after the other.
    ("add,relu,mul", 3 + 2 + 3, 4),
    ("relu", 2, 2),
    ("add,relu,scale", 3 + 2 + 2, 3),
    ("addcmul,add", 4 + 3, 5),
])  # fmt: skip
def test_bytes_of_elementwise_chains(chain, unfused, fused):
    answer = ask(chain, "1024x1024-bf16")
    assert answer.chain.unfused_bytes == unfused * 2 * MEGA
    assert answer.chain.fused_bytes == fused * 2 * MEGA
    assert answer.bound == pytest.approx(unfused / fused)


def test_bytes_of_rows_masks_and_reductions():
    # A weight and a bias are one row each; a reduction leaves one element a row; dropout keeps a mask of bytes.
    norm = ask("layer_norm", "1024x512-fp32")
    assert norm.chain.unfused_bytes == norm.chain.fused_bytes == 2 * 1024 * 512 * 4 + 2 * 512 * 4
    total = ask("square,sum", "1024x512-fp32")
    assert total.chain.unfused_bytes == 3 * 1024 * 512 * 4 + 1024 * 4
    assert total.chain.fused_bytes == 1024 * 512 * 4 + 1024 * 4
    dropout = ask("softmax,dropout", "1024x512-bf16")
    assert dropout.chain.unfused_bytes == 4 * 1024 * 512 * 2 + 1024 * 512
    assert dropout.chain.fused_bytes == 2 * 1024 * 512 * 2
    masked = ask("masked_fill,softmax", "1024x512-bf16")
    assert masked.chain.fused_bytes == 2 * 1024 * 512 * 2 + 1024 * 512


def test_vectors_rows_and_targets_each_get_a_line():
    even, odd = ask("softmax", "1823x1024-fp32"), ask("softmax", "1823x781-fp32")
    assert line(even, "vectors").good
    assert "multiple of 16: loads of 4 elements" in line(even, "vectors").text
    assert line(odd, "vectors").good is False
    assert "narrow to 4 bytes; pad the row's stride to 3,136" in line(odd, "vectors").text
    assert "BLOCK=1024" in line(odd, "BLOCK").text
    assert "24 % of its lanes are masked" in line(odd, "BLOCK").text
    assert "pad them" in line(odd, "TMA").text
    # Elementwise code does not care about rows: only the very last loads are masked.
    flat = ask("relu,exp", "1823x781-fp32")
    assert line(flat, "vectors").good
    assert "the last 12 bytes" in line(flat, "vectors").text
    assert "masks" in line(flat, "BLOCK").text


def test_long_rows_and_small_work_are_told():
    assert line(ask("softmax", "128x16384-bf16"), "BLOCK").good
    assert "walk it in chunks" in line(ask("softmax", "128x65536-bf16"), "BLOCK").text
    small = ask("add,relu", "128x128-bf16")
    assert "2 launches cost more than their bytes" in line(small, "time").text
    assert line(small, "L2").good is False
    large = ask("add,relu", "16384x16384-bf16")
    assert "launches" not in line(large, "time").text
    assert line(large, "L2").good is True
    alone = ask("relu", "16384x16384-bf16")
    assert "nothing to win" in line(alone, "bound").text


@pytest.mark.parametrize(
    ("dtype", "target", "good"),
    [("fp8", "sm_80", False), ("fp8", "sm_90", True), ("bf16", "sm_80", True), ("fp32", "sm_80", True)],
)
def test_what_the_target_supports(dtype, target, good):
    answer = ask("add,relu", f"4096x4096-{dtype}", target)
    assert line(answer, "dtype").good is good
    assert ("none" in line(answer, "TMA").text) == (target == "sm_80")


@pytest.mark.parametrize(("arguments", "said"), [
    (["addd", "3x3-fp32"], "did you mean 'add'?"), (["", "3x3-fp32"], "name operations in their order"),
    (["matmul,relu", "3x3-fp32"], "matmul is no pass over memory"),
    (["sum,relu", "3x3-fp32"], "sum leaves one value a row"), (["relu", "3x0-fp32"], "is empty"),
    (["relu", "3x3"], "sizes and a dtype"), (["relu", "3x3-fp33"], "did you mean 'fp32'?"),
    (["relu", "3x3-fp32", "--target", "sm_70"], "unknown target 'sm_70'"),
])  # fmt: skip
def test_bad_input_gets_one_line(arguments, said, capsys):
    assert cli.main(["fuse", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_command_prints_a_table_or_json(capsys):
    assert cli.main(["fuse", "add,relu,mul", "16384x4096-bf16"]) == 0
    printed = capsys.readouterr().out
    assert "8 passes over 134 MB unfused, 4 passes over 134 MB fused" in printed
    assert "2× faster by the bytes alone" in printed
    assert cli.main(["fuse", "add,relu,mul", "16384x4096-bf16", "--target", "sm_80", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bound"] == pytest.approx(2)
    assert answer["target"] == "sm_80"


FUNCTIONS = """
import torch
import torch.nn.functional as F

def gated(a, b, c):
    return F.silu(a + b) * c

def norm(x, weight, eps=1e-6):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

def product(a):
    return torch.relu(a @ a.T)

def peek(a):
    return a if a.sum() > 0 else -a

def view(a):
    return a.view(-1)

def broken(a):
    raise KeyError("two\\nlines")
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "functions.py"
    file.write_text(FUNCTIONS)
    return str(file)


def test_functions_count_as_their_operators(functions):
    problem = fusion.parse_problem("1024x512-bf16")
    chain = fusion_trace.count(f"{functions}:gated", problem)
    assert chain == fusion.Chain(("add", "silu", "mul"), 8 * problem.bytes, 4 * problem.bytes, False, False)
    # Its operators are those of the chain by name.
    named = fusion.count(("add", "silu", "mul"), problem)
    assert (chain.unfused_bytes, chain.fused_bytes) == (named.unfused_bytes, named.fused_bytes)
    chain = fusion_trace.count(f"{functions}:norm", problem)
    assert chain.fused_bytes == 2 * problem.bytes + problem.row_bytes
    assert chain.whole_row and chain.aligned_rows
    assert chain.unfused_bytes > 15 * problem.bytes  # eager goes through fp32 and back


@pytest.mark.parametrize(("name", "said"), [
    ("product", "no pass over memory"),
    ("peek", "looks at a tensor's value"),
    ("view", "moves no data"),
    ("nothing", "has no function 'nothing'"),
])  # fmt: skip
def test_a_function_that_cannot_be_counted_says_why(functions, name, said):
    with pytest.raises(ValueError, match=said):
        fusion_trace.count(f"{functions}:{name}", fusion.parse_problem("64x64-fp32"))


def test_fuse_counts_a_function_elsewhere(functions, capsys):
    assert cli.main(["fuse", f"{functions}:gated", "1024x512-bf16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chain"]["names"] == ["add", "silu", "mul"]
    assert cli.main(["fuse", "no_such_file.py:f", "1024x512-bf16"]) == 2
    assert "is no file" in capsys.readouterr().err
    assert cli.main(["fuse", f"{functions}:broken", "1024x512-bf16"]) == 2
    said = capsys.readouterr().err
    assert "KeyError" in said
    assert said.count("\n") == 1
