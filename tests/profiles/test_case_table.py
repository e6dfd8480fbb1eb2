"""What the models know of each case."""

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tilescope.table import case_table, schema
from tilescope.table.case import Case

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=40)
CASE = Case("softmax", "triton", "forward", "8x8-fp32")


def table(times):
    rows = [CASE.row("gpu_time", time, "torch_profiler", launch=0, sample=n) for n, time in enumerate(times)]
    return schema.frame(
        [*rows, CASE.row("gpu_time", 7.0, "ncu", launch=1, sample=0), CASE.row("interval", 3.0, "events")]
    )


@given(TIMES)
@settings(deadline=None)
def test_a_spread_is_what_pandas_says(times):
    (case,) = case_table.gather(table(times))
    spread, wanted = case.spread("gpu_time", "torch_profiler"), pd.Series(times)
    assert spread is not None
    for found, share in ((spread.value, 0.5), (spread.low, 0.05), (spread.high, 0.95)):
        assert math.isclose(found, wanted.quantile(share), rel_tol=1e-9)


def test_a_value_belongs_to_its_launch_source_and_case():
    other = Case("softmax", "eager", "forward", "8x8-fp32")
    both = pd.concat([table([1.0, 3.0, 2.0]), schema.frame([other.row("registers", 32, "compiler", launch=0)])])
    ours, theirs = case_table.gather(both.sample(frac=1, random_state=1))
    if ours.key["impl"] != "triton":
        ours, theirs = theirs, ours
    assert ours.values == {
        ("gpu_time", "torch_profiler"): {0: 2.0}, ("gpu_time", "ncu"): {1: 7.0}, ("interval", "events"): {None: 3.0},
    }  # fmt: skip
    assert theirs.values == {("registers", "compiler"): {0: 32.0}}


@pytest.mark.parametrize(("error", "wrong"), [(1e-5, False), (2e-5, True)])
def test_error_up_to_its_tolerance_is_right(error, wrong):
    checked = [CASE.row("relative_error", error, "check"), CASE.row("tolerance", 1e-5, "check")]
    (case,) = case_table.gather(schema.frame(checked))
    assert case.wrong() is wrong


def test_gather_caches_by_table():
    first = table([1.0])
    assert case_table.gather(first)[0] is case_table.gather(first)[0]
    second = table([2.0])
    assert case_table.gather(second)[0].values["gpu_time", "torch_profiler"] == {0: 2.0}
    assert case_table.gather(first)[0].values["gpu_time", "torch_profiler"] == {0: 1.0}


def test_counted_bytes_replace_those_of_whole_tensors():
    declared = {
        "algorithm_bytes_read": 4096,
        "algorithm_bytes_written": 4096,
        "algorithm_flops": 0,
        "tensor_bytes": 8192,
    }
    counted = {"unique_bytes_read": 128, "unique_bytes_written": 64, "requested_flops": 32}
    rows = [CASE.row(metric, value, "model") for metric, value in declared.items()]
    more = [CASE.row(metric, value, "interpreter", launch=0, function="f") for metric, value in counted.items()]
    (whole,), (exact,) = (case_table.gather(schema.frame(chosen)) for chosen in (rows, [*rows, *more]))
    assert whole.needed_bytes() == case_table.Known(8192, "model")
    assert exact.needed_bytes() == case_table.Known(192, "model")
    assert exact.total("algorithm_flops", "model") == case_table.Known(32, "model")
    assert exact.total("tensor_bytes", "model") is None
