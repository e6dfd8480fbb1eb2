"""Contents of a captured launch's memory: the distribution of large floats, and the bytes of tensors that share memory."""

import pytest
import torch
from tilescope.captures import arguments, replay


def described(view):
    return arguments.described(view.untyped_storage(), view, {}, exact=False)


def test_distribution_is_of_all_columns():
    columns = torch.zeros(4096, 1024)
    columns[:, 1::2] = 2.0
    found = described(columns)
    assert found["kind"] == "normal" and (found["low"], found["high"]) == (0.0, 2.0)
    assert found["mean"] == pytest.approx(1.0, abs=0.05) and found["deviation"] == pytest.approx(1.0, abs=0.05)


def test_distribution_is_of_finite_numbers():
    values = torch.linspace(-3.0, 5.0, 1 << 20)
    values[::3] = float("nan")
    values[1::7] = float("inf")
    found = described(values)
    assert found["low"] == pytest.approx(-3.0, abs=0.01) and found["high"] == pytest.approx(5.0, abs=0.01)
    assert found["mean"] == pytest.approx(1.0, abs=0.05)
    assert described(torch.full((1 << 20,), float("nan")))["mean"] == 0.0


def test_tensor_bytes_counts_shared_memory_once():
    x, other = torch.randn(8, 4), torch.randn(6)
    given = {"x": x, "same": x, "row": x[2], "other": other, "expanded": other[:1].expand(100), "n": 3}
    data = arguments.Writer().arguments(given, "kernel")
    assert replay.tensor_bytes(data, ["x", "other"]) == x.nbytes + other.nbytes
    assert replay.tensor_bytes(data, ["x", "same", "row"]) == x.nbytes
    assert replay.tensor_bytes(data, ["row", "n", "absent"]) == 16
    assert replay.tensor_bytes(data, ["expanded"]) == 4


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "uniform", "dtype": "int8", "low": -3, "high": 100},
        {"kind": "normal", "dtype": "float16", "mean": 0.0, "deviation": 1.0, "low": -4.0, "high": 4.0},
    ],
)
def test_drawn_numbers_repeat_in_large_tensors(data, tmp_path):
    found = torch.zeros(5 << 20, dtype=getattr(torch, data["dtype"]))
    arguments.draw(found.untyped_storage(), 0, data, tmp_path, seed=1)
    rows = found.view(-1, 1 << 20)
    assert torch.equal(rows[4, :-3], rows[0, 3:]) and not torch.equal(rows[4], rows[0])
    assert data["low"] <= found.min() < found.max() <= data["high"] and found.double().std() > 0.9
