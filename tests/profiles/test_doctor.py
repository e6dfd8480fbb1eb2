"""Every finding that is not ok names its cure."""

import pytest
from tilescope.jobs import doctor

from . import made_up


def test_counter_permission_follows_the_driver(tmp_path, monkeypatch):
    parameters, admin = tmp_path / "params", []
    monkeypatch.setattr(doctor, "administrator", lambda: bool(admin))
    parameters.write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    refused = doctor.counters(parameters, True)
    assert not refused.ok
    assert "NVreg_RestrictProfilingToAdminUsers=0" in refused.cure
    admin.append("root")
    assert doctor.counters(parameters, True).ok
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    admin.clear()
    assert doctor.counters(parameters, True).ok
    assert not doctor.counters(tmp_path / "gone", False).ok


def test_the_drivers_version_is_read(tmp_path):
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    assert doctor.driver(version, True).found == "580.95.05"


@pytest.mark.parametrize(("probe", "gpu", "ok", "cure"), [
    ({"torch": "2.13.0", "cuda_build": None, "cuda": False}, False, True, ""),
    ({"torch": "2.13.0", "cuda_build": None, "cuda": False}, True, False, "CUDA build"),
    ({"torch": "2.13.0", "cuda_build": "12.8", "cuda": True}, True, True, ""),
    ({"torch_error": "ModuleNotFoundError: No module named 'torch'"}, False, False, "pip install"),
])  # fmt: skip
def test_torch(probe, gpu, ok, cure):
    finding = doctor.torch(probe, gpu)
    assert finding.ok is ok
    assert cure in finding.cure
    assert bool(finding.cure) is not ok


@pytest.mark.parametrize(
    ("numpy", "triton", "fits"), [("2.3.5", "3.6.0", True), ("2.4.0", "3.6.0", False), ("2.4.0", "3.7.0", True)]
)
def test_a_numpy_that_only_tilescope_interprets_with_is_said(numpy, triton, fits):
    found = doctor.interpreter({"numpy": numpy, "triton": triton})
    assert found.ok
    assert ("TRITON_INTERPRET=1 without Tilescope needs numpy<2.4" in found.found) is not fits


def test_the_cache_and_the_runs_must_be_writable(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert doctor.cache().ok
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "file" / "runs"))
    finding = doctor.runs()
    assert not finding.ok
    assert finding.cure == "set TILESCOPE_RUNS to a folder you may write to"


def test_absent_tools_say_where_to_get_them(monkeypatch):
    made_up.machine(monkeypatch, ncu=None)
    assert "developer.nvidia.com" in doctor.ncu().cure
    monkeypatch.setattr("tilescope.collectors.cupti.library.find", lambda: None)
    assert doctor.cupti().cure == "pip install nvidia-cuda-cupti"


@pytest.mark.parametrize(
    ("probe", "python", "ok", "said"),
    [
        ({"torch": "2.13.0+cpu", "triton": "3.6.0", "torch_triton": ""}, (3, 12), True, "that were tried"),
        ({"torch": "2.13.0", "triton": "3.6.0", "torch_triton": "3.6.0"}, (3, 11), True, "that were tried"),
        ({"torch": "2.13.0", "triton": "3.9.0", "torch_triton": "3.9.0"}, (3, 12), True, "recordings are of triton 3.6"),
        ({"torch": "2.15.0", "triton": "3.6.0", "torch_triton": "3.9.0"}, (3, 12), False, "torch.compile may fail with 3.6.0"),
        ({"torch": "2.15.0", "triton": "3.9.0"}, (3, 14), True, "conflicts of tl.histogram are not predicted"),
        ({"torch": "2.10.0", "triton": "3.6.0"}, (3, 12), False, "torch 2.10 is older than 2.11"),
        ({"torch": "2.16.0", "triton": "3.6.0"}, (3, 12), True, "torch 2.16 is newer than 2.15"),
        ({"torch": "2.14.1", "triton": "3.10.0"}, (3, 13), True, "lanes need Triton 3.9 or older, here is 3.10.0"),
        ({"torch": "2.13.0", "triton": "3.6.0"}, (3, 15), True, "python 3.15 is newer than 3.14"),
        ({"torch": "2.13.0", "triton": "3.6.0"}, (3, 10), False, "python 3.10 is older than 3.11"),
        ({"torch_error": "absent"}, (3, 12), True, "that were tried"),
    ],
)  # fmt: skip
def test_combination_of_versions_is_judged(probe, python, ok, said):
    finding = doctor.combination(probe, python)
    assert finding.ok is ok and said in finding.found and bool(finding.cure) is not ok
