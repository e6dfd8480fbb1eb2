"""The sentence on a comparison, and the smallest difference that counts as one."""

import numpy as np
import pandas as pd
import pytest
from tilescope.models import compare, verdicts

NAN = float("nan")


def rows(*cases: tuple[float, str]) -> pd.DataFrame:
    return pd.DataFrame(cases, columns=["ratio", "verdict"])


@pytest.mark.parametrize(("cases", "said"), [
    ([(6.12, "slower"), (11.4, "slower"), (8.0, "slower")], "softmax is 6.1–11× faster than eager in all 3 cases"),
    ([(0.5, "faster"), (0.25, "faster")], "softmax is 2.0–4.0× slower than eager in both cases"),
    ([(2.0, "slower")], "softmax is 2.0× faster than eager in the one case"),
    ([(1.5, "slower"), (1.501, "slower")], "softmax is 1.50× faster than eager in both cases"),
    ([(1.004, "slower"), (1.03, "slower")], "softmax is 0.4–3.0 % faster than eager in both cases"),
    ([(1.001, "alike"), (0.98, "alike")], "softmax is as fast as eager in both cases"),
    ([(1.5, "slower"), (3.0, "slower"), (0.8, "faster"), (1.0, "alike")],
     "softmax is 1.50–3.0× faster than eager in 2 of 4 cases, 1.25× slower in 1, as fast in 1"),
    ([(0.8, "faster"), (1.0, "alike")], "softmax is 1.25× slower than eager in 1 of 2 cases, as fast in 1"),
    ([(2.0, "slower"), (NAN, "not timed")], "softmax is 2.0× faster than eager in the one case (1 more has no times to compare)"),
    ([(NAN, "not timed")], "softmax against eager: no times to compare"),
    ([(NAN, "not comparable"), (NAN, "not timed")], "softmax against eager: times cannot be compared"),
    ([], "softmax against eager: no case in common"),
])  # fmt: skip
def test_the_sentence_speaks_of_the_base(cases: list[tuple[float, str]], said: str) -> None:
    assert verdicts.sentence(rows(*cases), "softmax", "eager") == said


def test_after_a_change_it_speaks_of_the_other_side() -> None:
    found = verdicts.sentence(rows((1.2, "slower"), (0.5, "faster")), "after", "before", of_base=False)
    assert found == "after is 2.0× faster than before in 1 of 2 cases, 1.20× slower in 1"
    assert verdicts.sentence(rows((1.2, "slower")), "after", "before", of_base=False) == (
        "after is 1.20× slower than before in the one case"
    )


NOISE = np.linspace(-1, 1, 51) * 1e-3


@pytest.mark.parametrize(("factor", "low", "high"), [(1.005, 1.0, 1.01), (0.995, 0.99, 1.0), (1.2, 1.19, 1.21)])
def test_half_a_percent_is_a_difference_where_the_noise_is_a_tenth(factor: float, low: float, high: float) -> None:
    ends = compare.interval(1 + NOISE, factor * (1 + NOISE))
    assert low < ends[0] <= factor <= ends[1] < high


def test_the_interval_is_one_of_ninety_five_percent() -> None:
    """For two samples of one distribution the interval excludes 1 in about one of twenty draws."""
    numbers = np.random.default_rng(1)
    ends = [compare.interval(*(numbers.normal(1, 0.05, 60) for _ in range(2))) for _ in range(200)]
    wrong = sum(not low <= 1 <= high for low, high in ends) / len(ends)
    assert 0.01 <= wrong <= 0.1
