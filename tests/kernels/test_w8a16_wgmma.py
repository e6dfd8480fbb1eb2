"""wgmma in PTX with converted weights: its registers against the PTX ISA's fragments, on the CPU."""

import re

import numpy as np
import pytest
import torch
from tilescope_kernels.matrix_products import w8a16_wgmma
from triton.experimental.gluon import language as gl


def places(layout):
    """Row and column of each register of each lane of the first warp: (32, registers, 2)."""

    def sums(bases):
        found = np.zeros((1, 2), int)
        for basis in bases:
            found = np.concatenate([found, found + basis])
        return found

    return sums(layout.lane_bases)[:, None] + sums(layout.reg_bases)[None]


@pytest.mark.parametrize("columns", [16, 80, 112])
def test_registers_are_fragments(columns):
    parts = columns // 16
    code = w8a16_wgmma._products(parts, gl.bfloat16)
    instructions = re.findall(r"n(\d+)k16\S+ \{(.*?)\}, \{(.*?)\}", code)
    assert [int(wide) for wide, *_ in instructions] == [columns] * 4
    random = np.random.default_rng(0)
    weights, x = random.integers(-9, 9, (16, 64)), random.integers(-9, 9, (64, columns))
    where = places(w8a16_wgmma.pair_layout(16, False))
    registers = {}
    for half in range(2):
        for i in range(8):
            row, pair = where[:, i].T
            pair = 16 * half + pair
            registers[f"${16 * parts + 8 * half + i}"] = np.stack([weights[row, 2 * pair], weights[row, 2 * pair + 1]])
    totals = {f"${i}": np.zeros(32, int) for i in range(8 * parts)}
    group, thread = np.arange(32) // 4, np.arange(32) % 4
    for step, (_, outputs, inputs) in enumerate(instructions):
        a = np.zeros((16, 16), int)
        for i, name in enumerate(inputs.split(", ")):
            for j in range(2):
                a[group + i % 2 * 8, 2 * thread + i // 2 * 8 + j] = registers[name][j]
        product = a @ x[16 * step : 16 * step + 16]
        for i, name in enumerate(outputs.split(", ")):
            totals[name] += product[group + i % 4 // 2 * 8, i // 4 * 8 + 2 * thread + i % 2]
    for part in range(parts):
        found = np.zeros((16, 16), int)
        for i in range(8):
            found[tuple(where[:, i].T)] = totals[f"${8 * part + i}"]
        in_order = found.reshape(16, 2, 2, 4).transpose(0, 1, 3, 2).reshape(16, 16)
        assert (in_order == (weights @ x)[:, 16 * part : 16 * part + 16]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_become_numbers(dtype):
    """What the PTX of a conversion does, one operation at a time: exact for each of the 256 bytes."""
    named = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[dtype]
    code = w8a16_wgmma._conversion(named)
    sign, power, less = (
        int(re.search(rf"{line} (0x\w+|\d+);", code)[1], 0) for line in ("wide, wide,", "b32 power,", "b32 less,")
    )
    codes = torch.arange(-128, 128, dtype=torch.int8)

    def number(bits):
        return (torch.as_tensor(bits) & 0xFFFF).to(torch.uint16).view(dtype).double()

    found = number((codes.int() & 0xFF) ^ sign) * number(power) + number(less)
    assert "prmt.b32 wide, both, 0, 0x4140" in code and sign >> 16 == sign & 0xFFFF
    assert torch.equal(found.to(dtype).double() * w8a16_wgmma.unit(named), codes.double())
