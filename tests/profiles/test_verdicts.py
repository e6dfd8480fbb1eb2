"""The sentence on a comparison, and the smallest difference that counts as one."""

import numpy as np
import pandas as pd
import pytest
from tilescope.models import compare, verdicts

NAN = float("nan")


def rows(*cases):
    return pd.DataFrame(cases, columns=["speedup", "verdict"]).assign(fault="Wrong: NaN.")


@pytest.mark.parametrize(("cases", "said"), [
    ([(6.12, "faster"), (11.4, "faster"), (8.0, "faster")], "softmax is 6.12–11.4× faster than eager in all 3 cases"),
    ([(0.5, "slower"), (0.25, "slower")], "softmax is 2.00–4.00× slower than eager in both cases"),
    ([(1.5, "faster"), (1.501, "faster")], "softmax is 1.50× faster than eager in both cases"),
    ([(1.004, "faster"), (1.03, "faster")], "softmax is 0.4–3.0 % faster than eager in both cases"),
    ([(1.001, "alike"), (0.98, "alike")], "softmax is as fast as eager in both cases"),
    ([(1.5, "faster"), (3.0, "faster"), (0.8, "slower"), (1.0, "alike")],
     "softmax is 1.50–3.00× faster than eager in 2 of 4 cases, 1.25× slower in 1, as fast in 1"),
    ([(2.0, "faster"), (NAN, "not timed")], "softmax is 2.00× faster than eager in the one case (1 more has no times to compare)"),
    ([(NAN, "not timed")], "softmax against eager: no times to compare"),
    ([(NAN, "not comparable"), (NAN, "not timed")], "softmax against eager: times cannot be compared"),
    ([], "softmax against eager: no case in common"),
    ([(2.0, "faster"), (NAN, "wrong")],
     "softmax is wrong in 1 of 2 cases: NaN; softmax is 2.00× faster than eager in the one case"),
    ([(NAN, "wrong")], "softmax is wrong in the one case: NaN"),
])  # fmt: skip
def test_sentence_speaks_of_the_candidate(cases, said):
    assert verdicts.sentence(rows(*cases), "softmax", "eager") == said


NOISE = np.linspace(-1, 1, 51) * 1e-3


@pytest.mark.parametrize(("factor", "low", "high"), [(1.005, 1.0, 1.01), (0.995, 0.99, 1.0), (1.2, 1.19, 1.21)])
def test_interval_holds_the_speedup_within_its_noise(factor, low, high):
    ends = compare.interval(baseline=factor * (1 + NOISE), candidate=1 + NOISE)
    assert low < ends[0] <= factor <= ends[1] < high
