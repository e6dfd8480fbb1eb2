"""A run records its measuring conditions."""

from tilescope.jobs.supervisor import conditions
from tilescope.table import sources


def test_each_collector_that_measures_says_how():
    found = conditions(sources.KNOWN, {"repetitions": 20})
    assert set(found) == {"events", "torch_profiler", "cupti", "ncu", "lanes", "energy", "race"}
    assert found["torch_profiler"] == {
        "cache_control": "L2 flushed before each call, by reads that are evicted last", "clock_control": "left as they are", "warmup": 10,
        "repetitions": 20, "rotate": 3,
    }  # fmt: skip
    assert found["events"]["warmup"] == 10 and found["events"]["repetitions"] == 20
    assert found["cupti"]["warmup"] == found["ncu"]["warmup"] == 3
    assert conditions(["cupti"], {"warmup": 0})["cupti"]["warmup"] == 1
    assert "before each launch" in found["ncu"]["cache_control"]
