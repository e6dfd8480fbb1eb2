"""Lanes: the code that marks become, which a small interpreter of PTX runs here, and what is decoded from what it writes."""

import itertools
import operator
import re

import numpy as np
import pytest
from tilescope.collectors.lanes import buffer, lowering

#: A program, a load, a loop with a wait in inline code and a product, and two stores.
KERNEL = """
.visible .entry k(
	.param .u64 .ptr .global .align 1 k_param_0,
	.param .u64 .ptr .global .align 1 k_param_1
)
.reqntid 64
{
	MARK 0
	add.s32 	%r1, %r1, 1;
	MARK 2
	ld.global.b32 	%r1, [%rd1];
	MARK 3
$L__BB0_1:
	MARK 4
	// begin inline asm
	{
	waitLoop:
	mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;
	@!complete bra.uni waitLoop;
	}
	// end inline asm
	MARK 5
$L__tmp3:
	.loc	1 2 3
	MARK 6
	wgmma.mma_async.sync.aligned.m64n128k16;
	MARK 7
	@%p1 bra 	$L__BB0_1;
	MARK 8
	st.global.b32 	[%rd1], %r1;
	MARK 9
	st.global.b32 	[%rd1], %r1;
	MARK 10
	st.global.b32 	[%rd1], %r1;
	MARK 11
	st.global.b32 	[%rd1], %r1;
	MARK 1
	ret;
}
"""
LOWERED = lowering.lower(
    re.sub(r"MARK (\d+)", lambda found: lowering.mark(int(found[1])).replace("$0", "%r0"), KERNEL), 256
)
_OPERATIONS = {
    "mov": lambda one: one, "add": operator.add, "shr": operator.rshift, "and": operator.and_, "mad": lambda a, b, c: a * b + c,
    "selp": lambda one, other, chosen: one if chosen else other, "le": operator.le, "eq": operator.eq, "ge": operator.ge,
}  # fmt: skip


class Thread:
    """Runs the code of records of one thread, with a clock that ticks at each read. The kernel's loop turns ``turns`` times."""

    def __init__(self, program, thread, memory, clock, turns):
        self.memory, self.clock = memory, clock
        self.known = {
            "%ctaid.x": program, "%ctaid.y": 0, "%ctaid.z": 0, "%nctaid.x": 4, "%nctaid.y": 1, "%tid.x": thread, "%smid": 5,
            "%globaltimer": 1 << 40 | program + thread // 32 * 32, "[k_param_1]": 0,
        }  # fmt: skip
        before, loop, after = re.split(r"\$L__BB0_1.*", LOWERED.text)
        for line in "".join([before, *[loop] * turns, after]).splitlines():
            if "%ts" in line and ".reg" not in line:
                self.step(line)

    def value(self, name):
        return next(self.clock) if name == "%clock" else self.known[name] if name in self.known else int(name, 0)

    def step(self, line):
        asked, name, given = re.match(r"\s*(?:@(\S+) )?(\S+) (.*);", line).groups()
        if asked and not self.known[asked]:
            return
        if name.startswith("st.global"):
            at, more, values = re.match(r"\[(%\w+)\+?(\d*)\], (.*)", given).groups()
            for word, one in enumerate(values.strip("{} ").split(", ")):
                place, value = (self.known[at] + int(more or 0)) // 4 + word, self.value(one)
                self.memory[place] = value & 0xFFFFFFFF
                if name.endswith("b64"):
                    self.memory[place + 1] = value >> 32
            return
        result, *sources = given.split(", ")
        values = [self.value(one) for one in sources]
        if name.endswith("s32"):
            values = [value - (1 << 32) if value >> 31 else value for value in values]
        kind = "mov" if name.startswith("ld.param") else name.split(".")[name.startswith("setp")]
        self.known[result] = _OPERATIONS[kind](*values)


def recorded(turns, begin=1000):
    """What four programs with two warps write, decoded. The clock of the second warp begins 100 later, other lanes have their own."""
    memory = np.zeros((4, LOWERED.size // 4), np.uint32)
    for program, thread in itertools.product(range(4), (0, 1, 16, 32, 33)):
        Thread(
            program, thread, memory.reshape(-1), itertools.count(begin + thread // 32 * 100 + thread % 32, 10), turns
        )
    return [buffer.program(own, 2, LOWERED.stretches) for own in memory]


def test_records_without_work_between_share_a_moment():
    # The loop's stretch has one read for the end of the wait and the start of the product.
    assert LOWERED.stretches == [[[0, 2], [3]], [[4], [5, 6], [7]], [[8], [9], [10], [11], [1]]]
    assert LOWERED.text.count("%clock") == 10
    assert "tilescope" not in LOWERED.text


def test_what_the_code_writes_is_decoded():
    programs = recorded(turns=2)
    assert [one.number for one in programs] == [0, 1, 2, 3]
    # The last warp to end ends the program.
    assert [(one.sm, one.start, one.end) for one in programs[2:]] == [
        (5, 1 << 40 | n, 1 << 40 | n + 32) for n in (2, 3)
    ]
    assert buffer.spans(programs[0].warps[1]) == [
        (0, 1100, 1220), (1, 1100, 1110), (2, 1120, 1130), (3, 1130, 1140), (2, 1150, 1160), (3, 1160, 1170),
        (4, 1180, 1190), (5, 1200, 1210),
    ]  # fmt: skip
    assert programs[0].lost == [0, 0]


def test_records_beyond_the_room_are_counted():
    # 64 words hold the first stretch, 15 turns of the loop's, and not the others.
    (one, *_) = recorded(turns=18)
    assert one.lost == [20, 20]
    assert len(buffer.spans(one.warps[0])) == 31


@pytest.mark.parametrize("begin", [(1 << 32) - 130, (1 << 32) - 25])
def test_a_clock_that_begins_anew_goes_on(begin):
    # The clock of 32 bits begins anew between the two warps' first reads, or in the first warp.
    first, second = (own[:, 2].tolist() for own in recorded(1, begin)[0].warps)
    assert first[0] == begin and first == sorted(first)
    assert second[0] == begin + 100 and second == sorted(second)
