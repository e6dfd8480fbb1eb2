"""Traces of several ranks: who waits for whom in their collectives."""

import json

import pytest
from tilescope import cli
from tilescope.collectors.foreign_files import step_trace
from tilescope.models import ranks
from tilescope.notebook import opening

US = 1e-6


def trace(path, rank, late, *, named=True, calls=8, clock=0.0, gemm=40):
    """A rank whose all-reduces of 20 µs begin every 100 µs, ``late(call)`` µs late; both ranks end together. Clocks differ."""
    events = []
    for call in range(calls):
        start = clock + 1000 + 100 * call
        args = {"Collective name": "allreduce", "Process Group Description": "default_pg", "In msg nelems": 1024}
        events += [
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": start - 10 - gemm, "dur": gemm, "args": {"stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1]}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ts": start + late(call),
             "dur": 50 - late(call), "args": args | {"stream": 9}},
        ]  # fmt: skip
    info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}} if named else {}
    gpu = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    path.write_text(json.dumps({"schemaVersion": 1, **info, "deviceProperties": [gpu], "traceEvents": events}))
    return path


def test_ranks_late_rank_is_found_and_its_wait_measured(tmp_path, capsys):
    (tmp_path / "traces").mkdir()
    trace(tmp_path / "traces" / "a.json", 1, lambda call: 30, clock=5e6)
    trace(tmp_path / "traces" / "b.json", 0, lambda call: 0)
    assert cli.main(["open", str(tmp_path / "traces"), "--runs", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    first = (
        "Rank 0 waits 240 µs for rank 1, which comes last in 8 of 8 collectives: 43 % of the time in them is waiting"
    )
    assert said.startswith(
        f"{first} for the last rank\nRank 1 runs no kernel much longer than rank 0: its CPU or its data is late\n"
    )
    assert "communication" in said and "no problem found" not in said
    assert said.count(f"note: {first}") == 2


def test_ranks_kernel_that_makes_one_late_is_named(tmp_path):
    files = [
        trace(tmp_path / f"rank{rank}.json", rank, lambda call, rank=rank: 30 * rank, gemm=40 + 30 * rank)
        for rank in range(2)
    ]
    assert ranks.sentences(opening.skew_of(files))[1] == "Rank 1 runs gemm for 240 µs longer than rank 0"


@pytest.mark.parametrize(
    ("late", "word"),
    [((lambda call: 1, lambda call: 0), "are even"), ((lambda call: 30 * (call % 2), lambda call: 30 * (1 - call % 2)), "in turns")],
)  # fmt: skip
def test_ranks_that_are_even_or_take_turns_name_no_rank(late, word, tmp_path):
    files = [trace(tmp_path / f"rank{rank}.json", rank, late[rank], named=False) for rank in range(2)]
    said = " ".join(ranks.sentences(opening.skew_of(files)))
    assert word in said and "waits" not in said


def test_ranks_unmatched_calls_are_told_and_strangers_are_no_ranks(tmp_path):
    files = [trace(tmp_path / f"rank{rank}.json", rank, lambda call: 0, calls=8 - rank) for rank in range(2)]
    assert "1 call without a counterpart" in " ".join(ranks.sentences(opening.skew_of(files)))
    twice = [trace(tmp_path / f"run{number}.json", 0, lambda call: 0) for number in range(2)]
    assert opening.skew_of(twice) is None
    other = tmp_path / "other.json"
    other.write_text("[1")
    assert opening.skew_of([files[0], other]) is None
    (tmp_path / "empty").mkdir()
    assert cli.main(["open", str(tmp_path / "empty"), "--runs", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("kernel", "communicates"),
    [("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True), ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", True),
     ("void two_shot_all_reduce_kernel_inplace<c10::BFloat16>", True), ("void vllm::cross_device_reduce_1stage<half, 8>", True),
     ("void at::native::reduce_kernel<512, 1>", False), ("all_reduce_block_sum", False), ("gather_kernel", False)],
)  # fmt: skip
def test_collectives_are_told_from_kernels_that_only_reduce(kernel, communicates):
    assert step_trace.is_collective(kernel) is communicates
