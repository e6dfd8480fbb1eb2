"""Lines of TTGIR, PTX and SASS have their source line, also through inlined code."""

import json
from pathlib import Path

import pytest
from tilescope import cli
from tilescope.collectors import assembly, compiled_text
from tilescope.models import code_change
from tilescope.runs.listings import Compiled

from tests.recorded import recorded

TEXTS = Path(__file__).parent / "fixtures" / "texts"
TTGIR = (TEXTS / "softmax.ttgir").read_text()
PTX = (TEXTS / "softmax.ptx").read_text()
DISASSEMBLY = (TEXTS / "softmax.sass").read_text()


def lines_of(stage, text, file="softmax.py"):
    return {piece.text.strip(): piece.line for piece in compiled_text.read(stage, text, file)}


def test_ttgir():
    found = lines_of("ttgir", TTGIR)
    assert found["%m = arith.maxnumf %a, %b : f32"] == 32
    assert found["tt.store %4, %y"] == 41
    assert found["%c = arith.constant 1.0 : f32"] is None
    assert found["^bb0(%p: f32, %q: f32):"] is None
    assert found["%r = f(%p) : (f32) -> f32"] == 32
    assert not [text for text in found if "loc(" in text]


def test_damaged_or_unknown_texts():
    assert lines_of("ttgir", "#loc1 = loc(#loc2)\n#loc2 = loc(#loc1)\nx loc(#loc1)\n") == {"x": None}
    with pytest.raises(KeyError):
        compiled_text.read("llir", "", "k.py")


def test_ptx():
    found = lines_of("ptx", PTX)
    assert found["mov.u32 \t%r26, %ctaid.x;"] == 27
    assert found["max.f32 \t%r1, %r2, %r3;"] == 32
    # Library code that nothing of the file calls, and what is no instruction.
    assert found["ret;"] is found["$L__tmp36:"] is found["}"] is found[".reg .b32 \t%r<110>;"] is None
    assert not [text for text in found if text.startswith(".loc")]


def test_ptx_names_lines_of_one_file_only():
    found = assembly.attributed(PTX, "softmax.py")
    assert "\t.loc\t1 32 27                        // standard.py:170:27 @[" in found
    assert "\t.loc\t1 27 24 " in found
    assert "\t.loc\t2 9 1 " in found
    assert assembly.attributed(PTX, "else.py") == PTX


def test_texts_of_a_renamed_file_name_the_new_one():
    ttir = '#loc = loc("/home/somebody/softmax.py":3:0)\n#loc1 = loc("/lib/my_softmax.py":4:0)\n'
    renamed = assembly.of_file({"ttir": ttir, "ptx": PTX}, "copy.py")
    assert renamed["ttir"] == ttir.replace("/softmax", "/copy") and "my_softmax.py" in renamed["ttir"]
    assert renamed["ptx"] == PTX.replace("softmax.py", "copy.py") != PTX
    assert assembly.of_file({"ttir": ttir, "ptx": PTX}, "softmax.py")["ptx"] == PTX
    assert assembly.of_file({"ptx": PTX}, "copy.py")["ptx"] == PTX


def test_sass():
    text = assembly.sass(DISASSEMBLY)
    assert "/home" not in text
    found = compiled_text.read("sass", text, "softmax.py")
    assert [(piece.text, piece.line, piece.address) for piece in found] == [
        ("LDC R1, c[0x0][0x28]", 27, 0), ("@!P1 STS [R5+UR4], R14", 27, 16), (".L_x_0:", None, None),
        ("BRA `(.L_x_0)", 41, 32), ("NOP", None, 48), (".L_x_1:", None, None),
    ]  # fmt: skip
    assert {piece.line for piece in compiled_text.read("sass", text, "else.py")} == {None}


@pytest.mark.parametrize(("instruction", "expected"), [
    ("@!P2  LDG.E.128 R4, desc[UR6][R16.64]", "LDG.E.128"),
    ("      FMNMX R19, R6 ;", "FMNMX"),
    ("NOP;", "NOP"),
    ("", ""),
])  # fmt: skip
def test_mnemonics(instruction, expected):
    assert compiled_text.mnemonic(instruction) == expected


def compiled(*sass, conversions=()):
    """A launch of ``a.py`` with these SASS instructions, and layout conversions at these lines: ``"LDG.E.128 @3"``."""
    code = [instruction.split(" @") for instruction in sass]
    text = "".join(f"/*{16 * n:04x}*/  {name} R0, R2  // a.py:{line}\n" for n, (name, line) in enumerate(code))
    ttgir = "".join(f'%1 = ttg.convert_layout %0 : t -> u loc("a.py":{line}:1)\n' for line in conversions)
    return Compiled("kernel", {"sass": text, "ttgir": ttgir or "module {}\n"}, "a.py")


def changes(before, after, old=None, new=None):
    return {
        one.label: (one.baseline, one.candidate, one.line, one.worse)
        for one in code_change.moved((before, old or {}), (after, new or {}))
    }


def test_narrower_loads_are_worse_at_their_line():
    found = changes(
        compiled("LDG.E.128 @3", "FADD @4", "STG.E @5"), compiled(*["LDG.E @3"] * 4, "FADD @4", "STG.E @5"),
        {"widest_load": 16.0}, {"widest_load": 4.0},
    )  # fmt: skip
    assert found == {
        "widest global load": (16, 4, 3, True), "global loads": (1, 4, 3, True), "instructions": (3, 6, 3, True),
        "128-bit global loads": (1, 0, 3, False), "32-bit global loads": (0, 4, 3, False),
    }  # fmt: skip
    assert next(iter(found)) == "widest global load"


@pytest.mark.parametrize(("before", "after", "label", "line"), [
    (["HGMMA.64x64x16.F32 @3"], ["HMMA.16816.F32 @3"], "wgmma", 3),
    (["LDGSTS.E.128 @3"], ["LDG.E.128 @3"], "asynchronous copies", 3),
    (["FADD @3"], ["FADD @3", "STL @4", "LDL @4"], "local-memory accesses", 4),
    (["BAR.SYNC @3"], ["BAR.SYNC @3", "BAR.SYNC @9"], "barriers", 9),
    (["LDG.E.128 @3", "HMMA.16816.F32 @4"], ["LDG.E.128 @3", "LDG.E.128 @3", "HMMA.16816.F32 @4"], "global loads", 3),
    (["FFMA @3"] * 8, ["FMUL @3", "FADD @3"] * 8, "instructions", 3),
])  # fmt: skip
def test_lost_operations_are_worse(before, after, label, line):
    assert changes(compiled(*before), compiled(*after))[label][2:] == (line, True)


@pytest.mark.parametrize(("before", "after"), [
    (["HMMA.16816.F32 @3"], ["HGMMA.64x64x16.F32 @3"]),
    (["LDGSTS.E.128 @3"], ["UTMALDG.2D @3"]),
    (["LDG.E @3"] * 4, ["LDG.E.128 @3"]),
    (["FADD @3"] * 20, ["FADD @3"] * 21),
    (["FADD @3"], ["FADD @3", "NOP @9"]),
    (["HFMA2.MMA @3", "MOV @3"], ["MOV @3", "MOV @3"]),
    (["SHFL.BFLY @3"], ["REDUX.SUM @3"]),
    (["LDG.E.128 @3", "FADD @4", "BAR.SYNC @4"], ["LDG.E.128 @3", "FADD @4", "BAR.SYNC @4"] * 4),
    (["UTMALDG.2D @3", "HGMMA.64x64x16.F32 @3", "MOV @3"], ["UTMALDG.2D @3", "HGMMA.64x64x16.F32 @3", "MOV @3"] * 2),
])  # fmt: skip
def test_code_as_good_is_not_worse(before, after):
    assert not any(worse for *_, worse in changes(compiled(*before), compiled(*after)).values())


def test_layout_conversion_that_came_is_worse():
    found = changes(compiled("FADD @3", conversions=[4]), compiled("FADD @3", conversions=[4, 7]))
    assert found == {"layout conversions": (1, 2, 7, True)}


def test_absent_stage_has_no_counts():
    assert changes(compiled("FADD @3"), Compiled("kernel", {"ptx": ""}, "a.py"), {"registers": 8.0}) == {}


def test_line_with_other_operations_is_shown_with_both_codes():
    before, after = compiled("LDG.E.128 @3", "FADD @4"), compiled("LDG.E @3", "LDG.E @3", "FADD @4")
    (line,) = code_change.side_by_side(before, after, "sass")
    assert (line.line, line.operations) == (3, (("LDG.E", 0, 2), ("LDG.E.128", 1, 0)))
    assert (line.baseline, line.candidate) == (("LDG.E.128 R0, R2",), ("LDG.E R0, R2",) * 2)


def test_compare_prints_code_of_recordings(capsys):
    run = recorded("softmax")
    assert cli.main(["compare", "--code", f"{run}:triton", f"{run}:triton"]) == 0
    assert "the compiled code is the same" in capsys.readouterr().out
    assert cli.main(["compare", f"{run}:triton", f"{run}:triton", "--stage", "sass", "--json"]) == 0
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert compared["code"] and not any(one["moved"] or one["worse"] for one in compared["code"])
