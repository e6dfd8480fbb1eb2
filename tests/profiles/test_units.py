"""Values formatted for people."""

import math

import pytest
from tilescope.table import units


@pytest.mark.parametrize(("value", "unit", "expected"), [
    (4.27e12, "byte/second", "4.27 TB/s"), (106e-6, "second", "106 µs"), (2.3e-9, "second", "2.30 ns"),
    (1.5, "second", "1.50 s"), (1.1e-3, "second", "1.10 ms"), (0.936, "ratio", "93.6 %"), (134217728, "byte", "134 MB"), (0, "byte", "0 B"),
    (16, "byte", "16 B"), (193, "count", "193"), (3.88, "count", "3.88"), (742e12, "flop/second", "742 Tflop/s"),
    (963e12, "op/second", "963 TOP/s"), (math.nan, "second", "–"),
])  # fmt: skip
def test_text(value, unit, expected):
    assert units.text(value, unit) == expected


def test_a_ratio_is_written_in_one_way():
    values = (0.95234, 1.0, 2.306, 12.0, 1234.0)
    assert [units.times(value) for value in values] == ["0.952×", "1×", "2.31×", "12×", "1,234×"]
    assert units.times(math.nan) == "–"
