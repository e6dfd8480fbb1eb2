"""A run records its measuring conditions."""

from tilescope.collectors.conditions import conditions


def test_each_collector_that_measures_says_how():
    found = conditions(("check", "compiler", "torch_profiler", "ncu"), {"repetitions": 20})
    assert set(found) == {"torch_profiler", "ncu"}
    assert found["torch_profiler"] == {
        "cache_control": "L2 flushed before each call, by reads that are evicted last", "clock_control": "left as they are", "warmup": 10,
        "repetitions": 20, "rotate": 3,
    }  # fmt: skip
    assert found["ncu"]["warmup"] == 3
    assert "before each launch" in found["ncu"]["cache_control"]
