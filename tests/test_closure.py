"""What decides a slow test of kernels: no less than it imports, and no more than that where the text says it."""

from pathlib import Path

import pytest

from tests import closure

KERNELS = closure.ROOT / "tests" / "kernels"


def of(script: str) -> set[str]:
    return closure.decides(KERNELS / script)


def test_a_script_needs_its_kernels_and_their_helpers_and_no_other_kernels() -> None:
    found = of("batch_conv2d.py")
    ours = "kernels/tilescope_kernels"
    assert {f"{ours}/convolution/conv2d.py", f"{ours}/convolution/conv2d_kernels.py", f"{ours}/spec.py"} <= found
    assert {f"{ours}/_shared/launching.py", f"{ours}/__init__.py", "tests/kernels/checks.py"} <= found
    assert not any("/norms/" in path or "/attention/" in path for path in found)
    # Named, not imported: the checks look them up.
    assert {f"{ours}/elementwise/gated.py", f"{ours}/reductions/row_sum.py"} <= of("batch_operators.py")
    # The interpreter, which counts bytes, and nothing that draws or plans.
    assert "profiles/tilescope/interpreter/interpret.py" in of("batch_quantized.py")
    assert not any(path.startswith("profiles/tilescope/models") for path in of("batch_quantized.py"))


def test_a_kernel_needs_its_own_module_and_its_helpers() -> None:
    found = closure.of_kernel("softmax")
    assert {
        "kernels/tilescope_kernels/reductions/softmax_kernels.py",
        "kernels/tilescope_kernels/reductions/softmax_wide_rows.py",
        "kernels/tilescope_kernels/_shared/row_ring.py",
    } <= found
    assert not any("/norms/" in path or "/losses/" in path for path in found)


def test_every_kernel_has_a_home() -> None:
    from tilescope_kernels import CATALOG

    assert all(closure.home_of(spec.name) for spec in CATALOG) and not closure.home_of("no_kernel")


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("from tilescope_kernels import CATALOG", {"kernels/tilescope_kernels"}),
        ("import tilescope_kernels as kernels", {"kernels/tilescope_kernels"}),
        ("def later():\n    from tilescope.table import units", {"profiles/tilescope/table/units.py"}),
        ("from tilescope import find", {"profiles/tilescope/runs/store.py"}),
        ("import importlib\nimportlib.import_module(f'tilescope.{x}')\nname = \"tilescope\"", {"profiles/tilescope"}),
        ("import importlib\nimportlib.import_module(f'liger_kernel.{x}')", set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tilescope_kernels", set()),
    ],
)
def test_what_a_text_needs(tmp_path: Path, text: str, needed: set[str]) -> None:
    file = tmp_path / "some.py"
    file.write_text(text)
    found = {path.relative_to(closure.ROOT).as_posix() for path in closure._needs(file)}
    assert needed <= found and bool(needed) == bool(found)


def test_what_was_imported_all_the_same_is_said() -> None:
    import tilescope.models.roofline  # noqa: F401

    assert "profiles/tilescope/models/roofline.py" in closure.unforeseen(KERNELS / "batch_conv2d.py")
