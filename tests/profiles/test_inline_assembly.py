"""Inline PTX is computed, by instruction and in kernels."""

import numpy as np
import pytest
import torch
from tilescope.interpreter import inline_assembly
from tilescope.notebook.capturing import Capture

from . import unseen_launches as unseen

A, B, C = (np.array(v, dtype=np.uint32) for v in ([0xF0F0F0F0, 0x80, 1], [0xFF00FF00, 3, 31], [0xCCCCCCCC, 7, 0]))


def bits(text, *operands):
    with np.errstate(all="ignore"):
        (found,) = inline_assembly.compute(text, 1, operands)
    return found.tolist()


def floats(text, *values):
    operands = [np.array(value, dtype=np.float32).view(np.uint32) for value in values]
    with np.errstate(all="ignore"):
        (found,) = inline_assembly.compute(text, 1, operands)
    return found.view(np.float32).tolist()


@pytest.mark.parametrize(("text", "expected"), [
    ("lop3.b32 $0, $1, $2, $3, 0xE8;", [a & b | b & c | a & c for a, b, c in zip(A.tolist(), B.tolist(), C.tolist(), strict=True)]),
    ("xor.b32 $0, $1, $2; not.b32 $0, $0;", [0xF00FF00F, 0xFFFFFF7C, 0xFFFFFFE1]),
    ("shl.b32 $0, $1, $2;", [0, 0x400, 0x80000000]),
    ("shr.u32 $0, $1, 4;", [0x0F0F0F0F, 8, 0]),
    ("popc.b32 $0, $1;", [16, 1, 1]),
    ("clz.b32 $0, $1;", [0, 24, 31]),
    ("brev.b32 $0, $1;", [0x0F0F0F0F, 1 << 24, 1 << 31]),
    ("prmt.b32 $0, $1, $2, 0x5410;", [0xFF00F0F0, 0x00030080, 0x001F0001]),
    ("prmt.b32 $0, $1, $2, 0x0008;", [0xF0F0F0FF, 0x808080FF, 0x01010100]),
    ("sub.s32 $0, $1, $2; max.s32 $0, $0, 0;", [0, 125, 0]),
    ("{ .reg .b32 t; /* twice */ add.u32 t, $1, $1; mov.b32 $0, t; // done\n }", [0xE1E1E1E0, 256, 2]),
])  # fmt: skip
def test_integer_instructions(text, expected):
    assert bits(text, A, B, C) == expected


def test_fns_finds_the_nth_bit():
    mask = np.full(6, 0b1010_0110, dtype=np.uint32)
    base = np.array([0, 0, 7, 5, 0, 1], dtype=np.uint32)
    offset = np.array([1, 4, -2, 0, 5, 0], dtype=np.int32).view(np.uint32)
    assert bits("fns.b32 $0, $1, $2, $3;", mask, base, offset) == [1, 7, 5, 5, 0xFFFFFFFF, 1]


def test_float_instructions():
    assert floats("tanh.approx.f32 $0, $1;", [0.5]) == [pytest.approx(np.tanh(0.5))]
    assert floats("ex2.approx.ftz.f32 $0, $1;", [3.0]) == [8.0]
    assert floats("fma.rn.f32 $0, $1, $2, 0f3F800000;", [2.0], [5.0]) == [11.0]
    assert floats("max.f32 $0, $1, $2;", [np.nan, 2.0], [1.0, 3.0]) == [1.0, 3.0]


def test_halves_of_a_register():
    pair = np.array([1.5, -2.0], dtype=np.float16).view(np.uint32)
    (found,) = inline_assembly.compute("add.f16x2 $0, $1, $1;", 1, [pair])
    assert found.view(np.float16).tolist() == [3.0, -4.0]
    low, high = inline_assembly.compute("{ .reg .b32 t; mov.b32 t, $2; mov.b32 {$0, $1}, t; }", 2, [pair])
    assert [half.astype(np.uint16).view(np.float16).item() for half in (low, high)] == [1.5, -2.0]
    (again,) = inline_assembly.compute("mov.b32 $0, {$1, $2};", 1, [low, high])
    assert again.tolist() == pair.tolist()


@pytest.mark.parametrize("text", [
    "cvt.rna.tf32.f32 $0, $1;", "mov.u32 $0, %clock;", "@p mov.b32 $0, $1;", "bar.sync 0;", "mov.b32 $0;",
    "add.u32 $0, $1;",
])  # fmt: skip
def test_unknown_instruction_is_refused(text):
    with pytest.raises(inline_assembly.NotKnown):
        inline_assembly.compute(text, 1, [A])


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are interpreted where there is no GPU")
def test_kernel_addresses_may_depend_on_assembly():
    with Capture("sm_90") as capture:
        x = torch.arange(32.0, device="cuda")
        out = torch.zeros(32, device="cuda")
        unseen.every_other_kernel[(1,)](x, out, 0b1010, BLOCK=2)
    assert capture.notes == [] and out[:4].tolist() == [0, pytest.approx(np.tanh(1.0)), 0, pytest.approx(np.tanh(3.0))]
    assert capture.records[0].data["counted"]["unique_bytes_read"] == 8
