"""NVIDIA's rules, as ncu printed them on an H200, and their collector."""

import dataclasses
import json
from pathlib import Path

import pytest
from tilescope.collectors.ncu import counters, rules
from tilescope.collectors.ncu import rules as collector
from tilescope.models.advice import NVIDIA, nvidia_rules
from tilescope.table.case import Case

PRINTED = (Path(__file__).parent / "fixtures" / "details_rules_h200.csv").read_text()
SOFTMAX = Case("softmax", "triton", "forward", "16384x4096-bf16")
MATMUL = Case("matmul", "eager", "forward", "4096x4096x4096-bf16")
NVTX = '"Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"'


def ranged(printed):
    """The page with the column of ranges that ncu prints with ``--nvtx``, before the kernel's name."""

    def with_range(line):
        slug = (SOFTMAX if "softmax_kernel" in line else MATMUL).slug
        return line.replace('"127.0.0.1",', f'"127.0.0.1","""0:<default domain>:tilescope:{slug}:none""",')

    header = printed.replace('"Kernel Name"', f'{NVTX},"Kernel Name"', 1)
    return "".join(with_range(line) for line in header.splitlines(keepends=True))


def test_rules_are_read_with_their_estimates():
    rules = collector.read(PRINTED)
    assert len(rules) == 10
    assert [r.function for r in rules].count("softmax_kernel") == 4
    compression = rules[3]
    assert (compression.name, compression.section, compression.kind) == (
        "MemoryL2Compression", "MemoryWorkloadAnalysis_Chart", "OPT",
    )  # fmt: skip
    assert (compression.speedup, compression.scope) == (pytest.approx(0.2951), "global")
    assert compression.text.startswith("Out of the 134241760.0 bytes sent to the L2 Compression unit")
    # What ncu does not estimate is absent, not 0.
    assert rules[0].speedup is None
    assert rules[0].scope == ""


def test_findings_are_rules_of_nvidia_that_ask_for_a_change():
    rules = [rule for rule in collector.read(PRINTED) if rule.function == "mm_kernel"]
    found = {f.rule: f for f in nvidia_rules.findings(MATMUL, rules)}
    assert "SOLFPRoofline" not in found
    assert {f.origin for f in found.values()} == {NVIDIA}
    assert all(f.measured for f in found.values())
    tail = found["LaunchConfiguration"].bound
    assert tail and tail.ratio == pytest.approx(4 / 3)
    # An estimate for a part of the launch bounds nothing of the whole.
    occupancy = found["TheoreticalOccupancy"]
    assert occupancy.bound is None
    assert occupancy.title == "Theoretical occupancy (ncu estimates 87.5 % of this part alone)"
    assert found["SOLBottleneck"].title == "SOL bottleneck"
    assert found["MemoryL2Compression"].title == "Memory L2 compression"


def test_rule_that_a_dying_process_cut_off_is_kept():
    name = '"MemoryL2Compression"'
    *_, last = collector.read(PRINTED[: PRINTED.index(name) + len(name)])
    assert (last.name, last.kind, last.text, last.speedup) == ("MemoryL2Compression", "", "", None)


def test_finish_divides_the_page_among_the_cases(tmp_path):
    folder = tmp_path / "artefacts" / "ncu_rules"
    folder.mkdir(parents=True)
    (folder / counters.LOG).write_text(ranged(PRINTED))
    silent = Case("vector_add", "triton", "forward", "65536-bf16")
    collector.finish(folder, [SOFTMAX, MATMUL, silent])
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{c.slug}.json" for c in (SOFTMAX, MATMUL))
    case, found = rules.load_case(folder / f"{MATMUL.slug}.json")
    assert case == MATMUL
    assert len(found) == 6
    assert {rule.launch for rule in found} == {0}
    assert collector.parse(folder / f"{MATMUL.slug}.json", MATMUL).empty
    found = nvidia_rules.of_run(tmp_path)
    assert {(f.kernel, f.impl) for f in found} == {("softmax", "triton"), ("matmul", "eager")}
    assert found[0].bound and found[0].bound.ratio == pytest.approx(1 / (1 - 0.2951))
    assert nvidia_rules.of_run(tmp_path / "elsewhere") == []


def test_rules_of_an_older_run_have_the_tables_kernel_name(tmp_path):
    folder = tmp_path / "artefacts" / "ncu_rules"
    folder.mkdir(parents=True)
    mine = dataclasses.replace(SOFTMAX, kernel="/home/someone/mine.py:SPEC")
    (folder / counters.LOG).write_text(PRINTED)
    collector.finish(folder, [mine])
    assert {found.kernel for found in nvidia_rules.of_run(tmp_path, ["SPEC"])} == {"SPEC"}
    assert {found.kernel for found in nvidia_rules.of_run(tmp_path, ["mine.py"])} == {"mine.py"}


@pytest.mark.parametrize("text", ["", "{}", '{"case": {}, "rules": []}', json.dumps({"case": 3, "rules": []})])
def test_a_damaged_artefact_is_reported(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="collect them again"):
        collector.parse(tmp_path / "x.json", SOFTMAX)
