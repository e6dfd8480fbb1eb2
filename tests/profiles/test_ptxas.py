"""The assembler that Triton has to use."""

import sys

from tilescope.jobs import ptxas
from triton import knobs


def fake(folder, said):
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)
    return path


def test_it_is_the_one_triton_finds(monkeypatch):
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert ptxas.environment() == {
        "TRITON_PTXAS_PATH": knobs.nvidia.ptxas.path,
        "TRITON_PTXAS_BLACKWELL_PATH": knobs.nvidia.ptxas_blackwell.path,
    }
    for target, tool in (("sm_90", knobs.nvidia.ptxas), ("sm_120", knobs.nvidia.ptxas_blackwell)):
        found = ptxas.version(target)
        assert found is not None
        assert found.startswith(f"{tool.version}.")


def test_a_persons_own_prevails_where_it_exists(monkeypatch, tmp_path):
    own = fake(tmp_path, "Cuda compilation tools, release 13.1, V13.1.80")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(own))
    assert ptxas.environment()["TRITON_PTXAS_PATH"] == str(own)
    assert ptxas.version("sm_90a") == "13.1.80"
    assert ptxas.version("sm_100") != "13.1.80"
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "gone"))
    assert ptxas.environment()["TRITON_PTXAS_PATH"] == knobs.nvidia.ptxas.path


def test_what_is_not_there_is_absent(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(fake(tmp_path, "nothing of a version")))
    assert ptxas.version("sm_90") is None
    (tmp_path / "ptxas").chmod(0o644)
    assert ptxas.version("sm_90") is None
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert ptxas.environment() == {}
    assert ptxas.version("sm_90") is None
