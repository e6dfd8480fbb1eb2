"""Reading PTX and ptxas."""

import sys
from pathlib import Path

import pytest
from tilescope.collectors import assembly
from tilescope.jobs import triton_setup
from triton import knobs

TEXTS = Path(__file__).parent / "fixtures" / "texts"
REPORT = (TEXTS / "ptxas_report.txt").read_text()

PTX = (TEXTS / "accesses.ptx").read_text()


def test_resources_are_those_of_the_function_asked_for():
    assert assembly.resources(REPORT, "first") == assembly.Resources(255, 3, 96, 108, 124, 1024)
    assert assembly.resources(REPORT, "second") == assembly.Resources(12, 0, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="nothing about third"):
        assembly.resources(REPORT, "third")


def test_the_complaint_is_the_line_that_says_what_is_wrong():
    last = "ptxas fatal   : Ptx assembly aborted due to errors"
    version = "ptxas /tmp/kernel.ptx, line 1; fatal   : Unsupported .version 9.0; current version is '8.7'"
    assert assembly.complaint(f"{version}\n{last}\n") == version.removeprefix("ptxas /tmp/kernel.ptx, ")
    both = "ptxas info    : 0 bytes gmem\nptxas a.ptx, line 4; error   : Unknown symbol 'x'\n" + last
    assert assembly.complaint(both) == "line 4; error   : Unknown symbol 'x'"
    assert assembly.complaint("Killed\n") == "Killed"
    assert assembly.complaint("") == "no word of why"


def test_what_the_ptx_says():
    assert assembly.widest_access(PTX, "ld") == 16
    assert assembly.widest_access(PTX.replace("cp.async", "no.async"), "ld") == 8
    assert assembly.widest_access(PTX, "st") == 2
    assert assembly.widest_access("", "ld") is None
    assert assembly.tensor_instructions(PTX) == 2
    assert assembly.block_threads(PTX) == 128
    assert assembly.block_threads(".reqntid 32, 4, 2") == 256
    assert assembly.block_threads("") is None
    kept = assembly.portable(PTX)
    assert "somebody" not in kept
    assert '"kernels.py"' in kept
    assert "debug" not in kept


def test_why_products_run_one_by_one():
    lead = "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    short = f"{lead}insufficient register resources for the function 'second'\n{REPORT}"
    found = assembly.serialized_wgmma(PTX, short, "second")
    assert found == {"wgmma_short_of_registers": 1, "wgmma_accumulator_used": 0, "wgmma_serialized_otherwise": 0}
    assert not any(assembly.serialized_wgmma(PTX, short, "first").values())
    other = f"{lead}the presence of Extern calls in the function 'second'\n{REPORT}"
    assert assembly.serialized_wgmma(PTX, other, "second")["wgmma_serialized_otherwise"] == 1
    assert assembly.serialized_wgmma(PTX.replace("wgmma.", "none."), short, "second") == {}


def test_callers_of_inlined_code_are_read_from_both_forms():
    newer = """
	.loc	1 28 24                         // own.py:28:24
	.loc	2 216 16, function_name $L__info_string0, inlined_at 1 33 15 // standard.py:216:16
	.loc	2 196 12, function_name $L__info_string0, inlined_at 2 216 16 // standard.py:196:12
	.file	1 "/somewhere/own.py"
	.file	2 "/somewhere/standard.py"
"""
    older = newer.replace(", function_name $L__info_string0, inlined_at 1 33 15", "")
    older = older.replace(", function_name $L__info_string0, inlined_at 2 216 16", "")
    older = older.replace("standard.py:216:16\n", "standard.py:216:16 @[ own.py:33:15 ]\n")
    older = older.replace("py:196:12\n", "py:196:12 @[ standard.py:216:16 @[ own.py:33:15 ] ]\n")
    assert assembly.with_callers(newer) == assembly.with_callers(older) == older


def test_inline_assembly_has_the_place_of_its_first_instruction():
    newer = """
	// begin inline asm
	.loc	1 8 13                          // own.py:8:13
	mov.u32 %r1, 0x0;
	.loc	1 9 13                          // own.py:9:13
	ld.global.b32 { %r1 }, [ %rd1 + 0 ];

	// end inline asm
	.loc	1 9 22                          // own.py:9:22
"""
    assert assembly.with_callers(newer) == newer.replace("\t.loc\t1 9 13                          // own.py:9:13\n", "")


def fake(folder, said):
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)
    return path


def test_it_is_the_one_triton_finds(monkeypatch):
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert triton_setup.environment() == {
        "TRITON_PTXAS_PATH": knobs.nvidia.ptxas.path,
        "TRITON_PTXAS_BLACKWELL_PATH": knobs.nvidia.ptxas_blackwell.path,
    }
    for target, tool in (("sm_90", knobs.nvidia.ptxas), ("sm_120", knobs.nvidia.ptxas_blackwell)):
        found = triton_setup.assembler_version(target)
        assert found is not None
        assert found.startswith(f"{tool.version}.")


def test_a_persons_own_prevails_where_it_exists(monkeypatch, tmp_path):
    own = fake(tmp_path, "Cuda compilation tools, release 13.1, V13.1.80")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(own))
    assert triton_setup.environment()["TRITON_PTXAS_PATH"] == str(own)
    assert triton_setup.assembler_version("sm_90a") == "13.1.80"
    assert triton_setup.assembler_version("sm_100") != "13.1.80"
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "gone"))
    assert triton_setup.environment()["TRITON_PTXAS_PATH"] == knobs.nvidia.ptxas.path


def test_what_is_not_there_is_absent(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(fake(tmp_path, "nothing of a version")))
    assert triton_setup.assembler_version("sm_90") is None
    (tmp_path / "ptxas").chmod(0o644)
    assert triton_setup.assembler_version("sm_90") is None
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert triton_setup.environment() == {}
    assert triton_setup.assembler_version("sm_90") is None
