"""The events collector: its artefact, and the order in which it flushes, records and calls."""

import json

from tilescope.collectors import events
from tilescope.execution import cold
from tilescope.table import schema
from tilescope.table.case import Case

CASE = Case("softmax", "triton", "forward", "1823x781-fp32")


def test_parse(tmp_path):
    artefact = tmp_path / "a.json"
    artefact.write_text(
        json.dumps(
            {"interval": [3e-5, 2e-5], "graph_time": [1e-5], "peak_memory": 4096, "clocks": {"sm_clock": 1.98e9}}
        )
    )
    table = schema.validate(events.parse(artefact, CASE))
    found = [(row.metric, row.sample, row.value) for row in table.fillna({"sample": -1}).itertuples()]
    assert found == [
        ("interval", 0, 3e-5), ("interval", 1, 2e-5), ("graph_time", 0, 1e-5), ("peak_memory", -1, 4096),
        ("sm_clock", -1, 1.98e9),
    ]  # fmt: skip
    assert set(table["source"]) == {"events"}
    assert table["launch"].isna().all()
    artefact.write_text(json.dumps({"interval": [2e-5], "notes": ["not captured as a CUDA graph: why"]}))
    assert set(events.parse(artefact, CASE)["metric"]) == {"interval"}


def test_every_call_is_cold_and_between_its_events(cuda):
    happened: list[str] = []
    clock = iter(range(0, 100, 2))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            happened.append("record")
            self.time = next(clock)

        def elapsed_time(self, end):
            return float(end.time - self.time)

    cuda({"Event": Event, "synchronize": lambda: happened.append("synchronize")})
    times = cold.intervals(lambda: happened.append("call"), 3, lambda: happened.append("flush"))
    assert happened == ["flush", "record", "call", "record"] * 3 + ["synchronize"]
    assert times == [0.002] * 3
