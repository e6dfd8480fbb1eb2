"""Each numbered example runs as it is, in an empty folder, and shows what its first line promises."""

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
#: A text that each example prints.
SHOWN = {
    "01_first_kernel": "scale", "02_recordings": "NVIDIA H200", "03_findings": "cure: ", "04_roofline": "% of roofline",
    "05_compare": "triton is", "06_traffic": "model", "07_sweep": "the fastest is triton.Config(", "08_fuse": "up to 2× by the bytes",
    "09_gate": "fail\nregisters", "10_other_tools": "5.00 µs", "11_agent": "advice version", "12_report": "## Tilescope: gelu", "13_model": "= 100 µs\n", "14_lanes": "wait for load     wait",
}  # fmt: skip


def test_examples_are_numbered_and_in_the_documentation() -> None:
    assert [path.stem for path in sorted(EXAMPLES.glob("*.py"))] == list(SHOWN)
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    for name in SHOWN:
        about = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")))
        assert about and f"\n{about}\n" in page and f"../examples/{name}.py\n" in page


@pytest.mark.parametrize("name", SHOWN)
def test_example_shows_what_it_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert SHOWN[name] in capsys.readouterr().out
