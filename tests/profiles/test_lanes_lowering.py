"""Lanes: the code that marks become, which a small interpreter of PTX runs here, and what is decoded from what it writes."""

import itertools
import operator
import re
from pathlib import Path

import numpy as np
import pytest
from tilescope.collectors.lanes import buffer, lowering

TEXTS = Path(__file__).parent / "fixtures" / "texts"
#: A program, a load, a loop with a wait in inline code and a product, and two stores.
KERNEL = (TEXTS / "marked.ptx").read_text()
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


def test_what_the_code_writes_is_decoded():
    programs = recorded(turns=2)
    assert [one.number for one in programs] == [0, 1, 2, 3]
    # The last warp to end ends the program, whose first read of the clock is at its start.
    assert {(one.sm, one.cycles) for one in programs} == {(5, 240)}
    assert buffer.spans(programs[0].warps[1]) == [
        (0, 110, 230), (1, 110, 120), (2, 130, 140), (3, 140, 150), (2, 160, 170), (3, 170, 180), (4, 190, 200), (5, 210, 220),
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
    (program, *_) = recorded(1, begin)
    first, second = (own[:, 2].tolist() for own in program.warps)
    assert first[0] == 10 and first == sorted(first)
    assert second[0] == 110 and second == sorted(second)
    assert program.cycles == 210


def heads(*programs):
    """Heads of programs with one warp: SM, nanoseconds of start and end by a timer that steps by 1,000, and cycles at 1.5 GHz."""
    found = np.zeros((len(programs), lowering.first(1)), np.uint32)
    for head, (sm, start, end) in zip(found, programs, strict=True):
        clock = (1 << 32) - 2000 + sm * 12_345  # each SM has its own, which begins anew
        head[[2, 4, 6]] = sm, start // 1000 * 1000, (clock + start * 3 // 2) % (1 << 32)
        head[[lowering.HEAD + 1, lowering.HEAD + 2]] = (clock + end * 3 // 2) % (1 << 32), end // 1000 * 1000
    return found


def test_short_programs_have_their_length_by_the_clock_of_their_sm():
    launch = [(sm, 100 + turn * 1300, 1300 + turn * 1300) for sm in range(4) for turn in range(2)]
    # The timer says 1,000 and 2,000 ns, and that the second begins as the first ends.
    found = buffer.times(heads(*launch), rate=1.5)
    assert (found.end - found.start).tolist() == [1200] * 8
    assert (found.step, found.longest, found.rate) == (1000, 2500, 1.5)
    assert found.start.tolist() == [0, 1300] * 4
    # Without a rate the timer's is taken, which a long launch tells well.
    assert buffer.times(heads(*launch)).rate == pytest.approx(1.5, rel=0.3)
    long = [(sm, turn * 25_000 + sm * 300, turn * 25_000 + 24_500) for sm in range(4) for turn in range(4)]
    assert buffer.times(heads(*long), rate=1.9).rate == pytest.approx(1.5, rel=buffer.EXACT)
    assert np.isnan(buffer.times(heads((0, 100, 900))).rate)
