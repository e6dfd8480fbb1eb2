"""Advice on recorded runs, and the command that prints it."""

import json

import pytest
from tilescope import cli
from tilescope.hardware import device
from tilescope.models import advice
from tilescope.models.advice import Finding
from tilescope.runs import recordings, store
from tilescope.table import schema


def rules(found: list[Finding]) -> set[str]:
    return {finding.rule for finding in found}


def recorded(kernel: str) -> store.LoadedRun:
    """The newest recording of the kernel with times and counters."""
    return store.open_run(recordings.of_kernel(kernel)[0].path)


def found_in(kernel: str) -> list[Finding]:
    loaded = recorded(kernel)
    return advice.findings(loaded.table, loaded.run.device, loaded.run.kernels)


def of(found: list[Finding], *key: str) -> list[Finding]:
    return [f for f in found if (f.kernel, f.impl, f.direction, f.workload) == key]


@pytest.fixture(scope="module")
def norms() -> list[Finding]:
    return found_in("layer_norm")


def test_a_large_matmul_is_at_the_tensor_roof() -> None:
    assert rules(of(found_in("matmul"), "matmul", "triton", "forward", "8192x8192x8192-bf16")) == {"at-the-rate"}


def test_a_prediction_is_never_called_measured() -> None:
    loaded = recorded("layer_norm")
    table = loaded.table[loaded.table["source"].isin(["compiler", "interpreter", "model"])]
    found = advice.findings(table, device.for_target("sm_90"), loaded.run.kernels)
    assert "register-pressure" in rules(of(found, "layer_norm", "triton", "backward", "16384x4096-bf16"))
    assert not any(finding.measured for finding in found)
    assert not rules(found) & {"late-cpu", "launch-bound", "at-the-roof", "longest-stall"}


def test_findings_are_ranked_and_become_json(norms: list[Finding]) -> None:
    ratios = [f.bound.ratio for f in norms if f.bound]
    assert ratios == sorted(ratios, reverse=True)
    kinds = [
        "bound" if f.bound else "at the roof" if f.rule == "at-the-roof" else "" for f in norms if not f.impossible
    ]
    order = ["bound", "at the roof", ""]
    assert [order.index(kind) for kind in kinds] == sorted(order.index(kind) for kind in kinds)
    again = json.loads(json.dumps([f.to_json() for f in norms]))
    assert again[0]["bound"]["ratio"] == norms[0].bound.ratio  # type: ignore[union-attr]
    assert {e["source"] for f in again for e in f["evidence"]} <= {*schema.SOURCES, "measured", "datasheet"}


def test_the_command_prints_findings(capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded("layer_norm").run.id
    assert cli.main(["advise", run, "layer_norm", "--impl", "triton", "--workload", "8192x16384-bf16"]) == 0
    printed = capsys.readouterr().out
    forward, backward = printed.removeprefix("layer_norm/triton/forward/8192x16384-bf16\n").split("\n\n")[:2]
    assert forward.startswith("  1. At the HBM roof: 98.7 % of the measured copy bandwidth")
    assert "no estimate, measured\n     why: " in forward and "\n     do: " in forward
    assert backward.startswith("layer_norm/triton/backward/8192x16384-bf16\n  1. ")
    assert cli.main(["advise", run, "layer_norm", "--workload", "16384x4096-bf16", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["findings"]
    assert {f["workload"] for f in listed} == {"16384x4096-bf16"}
    assert {f["impl"] for f in listed} > {"triton"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["layernorm"], "unknown kernel 'layernorm': did you mean 'layer_norm'?"),
        (["--impl", "trton"], "unknown impl 'trton': did you mean 'triton'?"),
        (["--workload", "1x1-fp32"], "unknown workload '1x1-fp32'"),
    ],
)
def test_command_says_what_is_unknown(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", recorded("layer_norm").run.id, *arguments]) == 2
    assert said in capsys.readouterr().err
