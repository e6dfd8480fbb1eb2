"""METRICS is consistent."""

import re

import pytest
from tilescope.table.metrics import METRICS

UNITS = {"second", "byte", "count", "ratio", "flop", "hertz", "joule", "watt"}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_is_named_labelled_and_in_a_base_unit(metric):
    assert METRICS[metric.name] is metric
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert metric.label
    assert metric.unit in UNITS
    for terms in metric.ncu.values():
        assert terms
        assert all(re.fullmatch(r"[a-z]\w*(\.\w+)*", counter) and factor > 0 for counter, factor in terms)


def test_counters_follow_the_chip():
    fp8 = METRICS["tensor_ops_fp8"]
    assert fp8.terms("9.0") == (("sm__ops_path_tensor_src_fp8.sum", 1.0),)
    assert len(fp8.terms("10.3")) == 2
    assert fp8.terms("8.0") == ()
    assert METRICS["registers"].terms("8.6") == METRICS["registers"].terms("9.0")
