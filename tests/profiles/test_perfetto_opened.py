"""Perfetto's traces inside kernels that people open, as IKET, FlashInfer's profiler and ktrace nest their tracks."""

import gzip
from pathlib import Path

import pytest
from tilescope.collectors.foreign_files import formats, ncu_csv, perfetto_trace
from tilescope.files.bounded_reading import Unreadable
from tilescope.models import lanes
from tilescope.notebook.opening import open_file
from tilescope.runs.store import StoreError
from tilescope.table.case import Case

FLASHINFER = Path(__file__).parent / "fixtures" / "foreign" / "flashinfer.perfetto-trace"
BEGIN, END, INSTANT = 1, 2, 3

pytestmark = pytest.mark.usefixtures("runs")


def varint(value):
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def message(**fields):
    """A message of Perfetto's. Fields are called after their numbers: ``f8=1000``."""
    found = b""
    for name, values in fields.items():
        key = int(name[1:]) << 3
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                found += varint(key) + varint(value)
            else:
                raw = value.encode() if isinstance(value, str) else value
                found += varint(key | 2) + varint(len(raw)) + raw
    return found


def trace(*packets):
    return message(f1=[message(**packet) for packet in packets])


def track(uuid, name, parent=0, **more):
    """A packet that describes a track."""
    return {"f60": message(f1=uuid, f2=name, **({"f5": parent} if parent else {}), **more)}


def event(uuid, kind, at, name="", **more):
    return {"f8": at, "f11": message(f9=kind, f11=uuid, **({"f23": name} if name else {})), "f10": 1, **more}


#: A warp as ktrace nests it.
KTRACE = [
    track(1, "gemm"), track(2, "launch 0", 1), track(3, "XCD0/SE1/CU2", 2), track(4, "WG(5, 0, 0)", 3), track(5, "Wave3", 4),
    event(5, BEGIN, 1000, "Wave Span"), event(5, BEGIN, 3000, "wait for a"), event(5, END, 6000),
    event(5, INSTANT, 6500, "mark"), event(5, BEGIN, 7000, "mma"), event(5, END, 8000), event(5, END, 9000),
]  # fmt: skip


def opened(folder, raw, name="my.pftrace"):
    """The run that the file makes, its lanes' places, and their parts in nanoseconds after the launch's first event."""
    path = folder / name
    path.write_bytes(raw)
    run = open_file(path)
    first = run.table.iloc[0]
    spans = lanes.of_case(run, Case(*first[["kernel", "impl", "pass", "workload", "config"]])).spans
    found = {}
    for span in spans.itertuples():
        place = (span.function, span.launch, span.program, span.warp)
        found.setdefault(place, []).append((span.name, round(span.start * 1e9), round(span.end * 1e9)))
    return run, found


@pytest.mark.parametrize("name", ["my.pftrace", "my.pftrace.gz", "my.bin"])
def test_a_warp_opens_with_the_inner_slices_in_the_outer(tmp_path, name):
    raw = trace(*KTRACE)
    run, found = opened(tmp_path, gzip.compress(raw) if name.endswith(".gz") else raw, name)
    parts = [("Wave Span", 0, 2000), ("wait for a", 2000, 5000), ("Wave Span", 5000, 6000), ("mma", 6000, 7000)]
    assert found == {("gemm", 0, 5, 3): [*parts, ("Wave Span", 7000, 8000)]}
    assert run.run.settings["tool"] == "Perfetto (trace inside kernels)" and list(run.run.kernels) == ["gemm"]
    assert run.table.set_index("metric")["value"]["lane_wait_share"] == pytest.approx(3 / 8)


def test_flashinfer_s_trace_opens_with_a_group_s_tracks_in_one_lane():
    run = open_file(FLASHINFER)
    first = run.table.iloc[0]
    spans = lanes.of_case(run, Case(*first[["kernel", "impl", "pass", "workload", "config"]])).spans
    assert list(run.run.kernels) == ["flashinfer"]
    assert spans[["program", "warp"]].drop_duplicates().values.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    own = spans[(spans["program"] == 1) & (spans["warp"] == 1)]
    assert own["name"].tolist() == ["mma", "write-o"]
    assert own["start"].tolist() == pytest.approx([500e-9, 1100e-9])
    assert own["end"].tolist() == pytest.approx([1100e-9, 1300e-9])


def test_iket_s_tracks_below_a_warp_are_one_lane_and_launches_stay_apart(tmp_path):
    packets = []
    for launch in (0, 1):
        at = 10 * launch + 1
        packets += [
            track(at, "gemm"), track(at + 1, "SM 7", at), track(at + 2, "CTA (0, 0, 0)", at + 1),
            track(at + 3, "Warp 2", at + 2), track(at + 4, "StackedRanges", at + 3), track(at + 5, "tma_issue", at + 3),
            event(at + 4, BEGIN, 5000 * at, "mainloop"), event(at + 4, END, 5000 * at + 900),
            event(at + 5, BEGIN, 5000 * at + 100, "tma_issue"), event(at + 5, END, 5000 * at + 300),
        ]  # fmt: skip
    _, found = opened(tmp_path, trace(*packets))
    parts = [("mainloop", 0, 100), ("tma_issue", 100, 300), ("mainloop", 300, 900)]
    assert found == {("gemm", launch, 0, 2): parts for launch in (0, 1)}


def test_names_and_defaults_are_of_their_sequence_until_it_is_cleared(tmp_path):
    def interned(sequence, name, **more):
        return {"f10": sequence, "f12": message(f2=message(f1=1, f2=name)), **more}

    def slices(sequence, start):
        """A slice of the sequence's track and of its first name."""
        begin, end = (
            {"f10": sequence, "f8": at, "f11": message(f9=kind, f10=1)}
            for kind, at in ((BEGIN, start), (END, start + 10))
        )
        return begin, end

    def defaults(warp):
        return {"f59": message(f11=message(f11=warp)), "f13": 1}

    packets = [
        track(1, "k"), track(2, "CTA 0", 1), track(3, "warp 0", 2), track(4, "warp 1", 2),
        interned(1, "load", **defaults(3)), interned(2, "mma", **defaults(4)),
        *slices(1, 0), *slices(2, 0), interned(1, "store", **defaults(3)), *slices(1, 20), *slices(2, 20),
        {"f10": 2, **defaults(4)}, *slices(2, 40),
    ]  # fmt: skip
    _, found = opened(tmp_path, trace(*packets))
    assert [name for name, *_ in found["k", 0, 0, 0]] == ["load", "after load", "store"]
    assert [name for name, *_ in found["k", 0, 0, 1]] == ["mma", "after mma", "mma", "after mma", "unnamed"]


def test_times_may_be_steps_of_a_sequence_s_clock(tmp_path):
    clocks = message(f1=[message(f1=6, f2=7_000_000), message(f1=64, f2=7000, f3=1, f4=1000)])
    begin, end = event(5, BEGIN, 2, "load"), event(5, END, 3)
    packets = [*KTRACE[:5], {"f10": 1, "f13": 1, "f6": clocks, "f59": message(f58=64)}, begin, end, begin, end]
    packets.append(event(5, BEGIN, 7_020_000, "mma", f58=6))
    _, found = opened(tmp_path, trace(*packets, event(5, END, 7_021_000, f58=6)))
    assert [part for part in found["gemm", 0, 5, 3] if part[0] in ("load", "mma")] == [
        ("load", 0, 3000), ("load", 5000, 8000), ("mma", 18000, 19000),
    ]  # fmt: skip


def test_a_process_a_block_and_a_thread_a_warp_need_no_parents(tmp_path):
    process, thread = message(f1=7, f6="block 3"), message(f1=7, f2=1, f5="warp 1")
    packets = [{"f60": message(f1=1, f4=thread)}, {"f60": message(f1=2, f3=process)}]
    _, found = opened(tmp_path, trace(*packets, event(1, BEGIN, 0, "load"), event(1, END, 5)), "fa.pftrace")
    assert found == {("fa", 0, 3, 1): [("load", 0, 5)]}


def test_tracks_of_a_block_without_numbers_are_lanes_in_their_order(tmp_path):
    names = ["producer", "consumer"]
    packets = [track(1, "k"), track(2, "CTA 4", 1), *(track(3 + at, name, 2) for at, name in enumerate(names))]
    for at in range(2):
        packets += [event(3 + at, BEGIN, 10 * at, names[at]), event(3 + at, END, 10 * at + 10)]
    _, found = opened(tmp_path, trace(*packets))
    assert found == {("k", 0, 4, 0): [("producer", 0, 10)], ("k", 0, 4, 1): [("consumer", 10, 20)]}


def test_a_slice_without_an_end_ends_with_its_warp_and_is_said(tmp_path):
    run, found = opened(
        tmp_path, trace(*KTRACE[:8], event(5, END, 8000), event(5, BEGIN, 8500, "mma"), event(5, BEGIN, 9000))
    )
    assert found["gemm", 0, 5, 3][-2:] == [("after Wave Span", 7000, 7500), ("mma", 7500, 8000)]
    assert "slices without an end, which end with their warp's last event: 2" in run.run.notes


def test_many_launches_say_how_many_are_kept(tmp_path):
    packets = []
    for at in range(1, 200, 5):
        packets += [track(at, "k"), track(at + 1, "CTA 0", at), track(at + 2, "warp 0", at + 1)]
        packets += [event(at + 2, BEGIN, at, "load"), event(at + 2, END, at + 3)]
    run, found = opened(tmp_path, trace(*packets))
    assert len(found) == 32 and "of 40 launches the first 32 are kept" in run.run.notes


@pytest.mark.parametrize("times", [{}, {BEGIN: 5, END: 5}], ids=["no warp", "no time"])
def test_a_trace_without_slices_of_warps_says_what_to_open(tmp_path, times):
    thread = message(f1=7, f2=8, f5="python")
    packets = [track(1, "python 7", f3=message(f1=7)), {"f60": message(f1=2, f4=thread)}, track(3, "stream 7", 1)]
    packets += [event(uuid, kind, 10 * kind, "gemm") for uuid in (2, 3) for kind in (BEGIN, END)]
    packets += KTRACE[:5] * bool(times) + [event(5, kind, at, "load") for kind, at in times.items()]
    match = r"^my.pftrace is a trace of Perfetto without .*torch\.profiler .*for time inside a kernel, .*Proton's \.chrome_trace$"
    with pytest.raises(StoreError, match=match):
        opened(tmp_path, trace(*packets))


@pytest.mark.parametrize(
    "raw, why",
    [
        (trace(*KTRACE)[:-3], "cut off"),
        (trace(*KTRACE) + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "cut off, or damaged"),
        (trace(*KTRACE, {"f8": b"soon"}), "timestamp has another type"),
        (trace(*KTRACE, {"f11": 3}), "event has another type"),
        (trace(*KTRACE) + b"\x0b", "no trace of Perfetto"),
        (trace(*KTRACE, {"f50": b"packed"}), "packets are compressed"),
        (trace(*KTRACE, track(1, "gemm", 5)), "nested in a circle, or deeper than 64"),
        (gzip.compress(trace(*KTRACE))[:-9], "damaged"),
    ],
)
def test_a_damaged_trace_is_one_line(tmp_path, raw, why):
    with pytest.raises(StoreError, match=f"my.pftrace.*{why}"):
        opened(tmp_path, raw)


@pytest.mark.parametrize("limit", ["_TRACKS", "_PACKETS", "_LANES"])
def test_a_trace_beyond_the_limits_is_one_line(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(perfetto_trace, limit, 1)
    packets = [*KTRACE, track(6, "Wave4", 4), event(6, BEGIN, 1000, "load"), event(6, END, 2000)]
    with pytest.raises(StoreError, match=r"(it|a block of it) has more than"):
        opened(tmp_path, trace(*packets))


def test_damage_at_every_byte_is_one_line_or_a_trace(tmp_path):
    whole = trace(*KTRACE)
    path = tmp_path / "my.pftrace"
    told = 0
    for at, was in enumerate(whole):
        for raw in (whole[:at], whole[:at] + bytes([was ^ 1 << at % 8]) + whole[at + 1 :]):
            path.write_bytes(raw)
            try:
                perfetto_trace.read(path)
            except Unreadable as error:
                told += 1
                assert str(error) and "\n" not in str(error)
    assert told > len(whole)


def test_a_text_that_begins_with_a_line_break_is_no_trace_of_perfetto(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("\n==PROF== Connected to process 7\n")
    assert formats.of(path) is ncu_csv
