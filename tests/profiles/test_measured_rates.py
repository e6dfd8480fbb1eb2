"""Measured roofs count every byte that moves and every operation, over the time of the call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tilescope.execution import measured_rates

MEBIBYTE = 1 << 20


def slow(run: Callable[[], Any]) -> float:
    """Every call takes a millisecond."""
    run()
    return 1e-3


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of a mebibyte on the CPU."""
    monkeypatch.setattr(measured_rates, "_large", lambda: MEBIBYTE)
    monkeypatch.setattr(measured_rates, "_random", lambda nbytes: torch.arange(nbytes // 4, dtype=torch.int32))


@pytest.mark.usefixtures("small")
def test_a_copy_moves_every_byte_twice() -> None:
    roof = measured_rates._hbm_copy(slow)
    assert (roof.name, roof.unit) == ("hbm", "byte/second")
    assert roof.value == pytest.approx(2 * MEBIBYTE / 1e-3)
    assert "1,048,576 bytes, read + written" in roof.note


@pytest.mark.usefixtures("small")
def test_a_read_moves_every_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    class Kernel:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return lambda source, sums, chunks, steps, chunk, *_, **__: read.append(
                (grid[0] * steps * chunk, chunks * chunk, source.numel(), sums.numel() == grid[0])
            )

    monkeypatch.setattr(measured_rates, "_read", Kernel())
    roof = measured_rates._hbm_read(slow)
    assert roof.value == pytest.approx(MEBIBYTE / 1e-3)
    assert roof.note.startswith("read of 1,048,576 bytes")
    assert read == [(MEBIBYTE // 4, MEBIBYTE // 4, MEBIBYTE // 4, True)], "what is counted is what is read"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("pipe", "unit"), [("bf16", "flop/second"), ("int8", "op/second")])
def test_a_product_is_a_multiplication_and_an_addition_for_each_term(
    pipe: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def prepare(size: int) -> Callable[[], None]:
        asked.append(size)
        return lambda: None

    monkeypatch.setitem(measured_rates._PRODUCTS, pipe, (prepare, "highest"))
    roof = measured_rates._product(pipe, slow)
    # All sizes take alike long here: the largest does the most.
    assert roof.value == pytest.approx(2 * max(asked) ** 3 / 1e-3)
    assert roof.unit == unit
