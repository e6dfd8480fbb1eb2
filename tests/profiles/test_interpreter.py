"""Bytes counted without a GPU. Every figure here can be worked out by hand."""

from typing import Any

import pytest

from .capturing import capture, figures, small

CASES = {
    "softmax": small("SOFTMAX", "307x781-fp32"), "softmax eager": small("SOFTMAX", "307x781-fp32", "eager"),
    "large eager": small("SOFTMAX", "1000000x4096-bf16", "eager"), "matmul": small("MATMUL", "256x512x128-bf16"),
    "matmul eager": small("MATMUL", "256x512x128-bf16", "eager"),
    "times": small("TIMES", "5000-fp32", direction="backward"),
    "times eager": small("TIMES", "5000-fp32", "eager", "backward"), "gather": small("GATHER", "1000-fp32"),
    "beyond": small("CARELESS", "100-fp32", "beyond"), "sums": small("SUMS", "40x300-bf16"),
    "compact": small("COMPACT", "100-fp32"),
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    answers = capture("interpreter", list(CASES.values()))
    return {name: answers[case.id] for name, case in CASES.items()}


def test_ragged_softmax_moves_its_tensor_once_each_way(found: dict[str, Any]) -> None:
    counted, moved = figures(found["softmax"]), 307 * 781 * 4
    for name in ("requested_bytes_read", "requested_bytes_written", "unique_bytes_read", "unique_bytes_written"):
        assert counted[name] == moved
    # A row of 3124 bytes begins anywhere in a 32-byte sector, in steps of 4.
    sectors = sum((start + 3124 - 1) // 32 - start // 32 + 1 for start in range(0, moved, 3124))
    assert counted["sector_efficiency_read"] == pytest.approx(moved / 32 / sectors, rel=1e-12)
    (launch,) = found["softmax"]["artefact"]["launches"]
    assert list(launch["lines"].values()) == [
        {"requested_bytes_read": moved, "sectors_read": sectors},
        {"requested_bytes_written": moved, "sectors_written": sectors},
    ]
    assert "def softmax" in found["softmax"]["artefact"]["sources"]["small_kernels.py"]
    assert launch["file"] == "small_kernels.py"


def test_matmul_reads_its_operands_once_a_tile(found: dict[str, Any]) -> None:
    m, n, k = 256, 512, 128
    counted = figures(found["matmul"])
    assert counted["requested_flops"] == 2 * m * n * k
    assert counted["requested_bytes_read"] == 2 * (m * k * (n // 256) + k * n * (m // 128))
    assert counted["unique_bytes_read"] == 2 * (m * k + k * n)
    assert counted["requested_bytes_written"] == counted["unique_bytes_written"] == 2 * m * n
    assert counted["sector_efficiency_read"] == 1


def test_eager_code_is_counted_by_operator(found: dict[str, Any]) -> None:
    tensor, column = 307 * 781 * 4, 307 * 4
    rows = found["softmax eager"]["rows"]
    assert rows["function"][0] == "aten.amax"
    first, subtraction = figures(found["softmax eager"]), figures(found["softmax eager"], 1)
    assert (first["requested_bytes_read"], first["requested_bytes_written"]) == (tensor, column)
    assert (subtraction["requested_bytes_read"], subtraction["requested_bytes_written"]) == (tensor + column, tensor)
    product = figures(found["matmul eager"])
    assert product["requested_flops"] == 2 * 256 * 512 * 128
    assert product["requested_bytes_read"] == 2 * (256 + 512) * 128
    assert figures(found["large eager"])["requested_bytes_read"] == 1_000_000 * 4096 * 2


@pytest.mark.parametrize("name", ["times", "times eager"])
def test_backward_case_counts_the_backward_pass_only(found: dict[str, Any], name: str) -> None:
    counted = figures(found[name])
    assert counted["requested_bytes_read"] == counted["requested_bytes_written"] == 20_000
    assert set(found[name]["rows"]["launch"]) == {0}


def test_gather_masks_and_atomics_are_followed(found: dict[str, Any]) -> None:
    """A gather of every fourth float uses an eighth of what it loads, indices are whole."""
    counted = figures(found["gather"])
    assert counted["requested_bytes_read"] == 1000 * (8 + 4)
    assert counted["sector_efficiency_read"] == pytest.approx(12_000 / (8_000 + 500 * 32))
    text = found["gather"]["artefact"]["sources"]["small_kernels.py"]
    (line,) = (number for number, code in enumerate(text.splitlines(), 1) if "tl.load(x_ptr + index" in code)
    assert counted["wasteful_line_read"] == line and "wasteful_line_written" not in counted
    zeroing, launch = figures(found["compact"], 0), figures(found["compact"], 1)
    assert found["compact"]["rows"]["function"][0] == "aten.zeros_like"
    assert (zeroing["requested_bytes_read"], zeroing["requested_bytes_written"]) == (0, 400)
    assert launch["requested_bytes_read"] == 400
    assert 0 < launch["requested_bytes_written"] < 400
    # Around the launch, PyTorch zeroes the sums and converts them.
    rows = found["sums"]["rows"]
    assert list(dict.fromkeys(rows["function"])) == ["aten.zeros", "loop_kernel", "aten._to_copy"]
    launch = figures(found["sums"], 1)
    assert launch["requested_bytes_read"] == 40 * 300 * 2 + 300 * 4
    assert launch["requested_bytes_written"] == launch["unique_bytes_written"] == 300 * 4
    assert launch["requested_flops"] == 40 * 3 * 128


def test_access_outside_of_tensors_is_an_error(found: dict[str, Any]) -> None:
    assert found["beyond"]["error"] == "InterpretationFailed"
    assert "careless_kernel, program (1, 0, 0), line" in found["beyond"]["message"]
    assert ": reads 112 bytes past the end of x_ptr: element 100 of 100" in found["beyond"]["message"]


def test_shared_out_programs_count_the_same() -> None:
    large = small("SOFTMAX", "3000x781-fp32")
    (answer,) = capture("interpreter", [large], share=3, interpreter_limit=400).values()
    counted = figures(answer)
    assert counted["requested_bytes_read"] == counted["unique_bytes_written"] == 3000 * 781 * 4
    assert counted["unique_bytes_read"] == counted["requested_bytes_written"] == 3000 * 781 * 4
    assert answer["told"] > 0


def test_slow_case_is_refused_in_one_line() -> None:
    large = small("SOFTMAX", "8000x781-fp32")
    (answer,) = capture("interpreter", [large], interpreter_limit=0.5).values()
    assert answer["error"] == "NotApplicable"  # skipped and said, not a failure of the kernel
    assert "would take longer to interpret than a case may, 0.5 s of work" in answer["message"]
    assert "choose a smaller workload" in answer["message"]
    assert "\n" not in answer["message"]
