"""Turns the marks of a kernel's PTX into code that writes records to the profile's buffer. Pure text.

A record costs a read of the clock. The records of a stretch of code without branches are written together: the stretch's number and
32 bits of the SM's clock for each moment. ``buffer`` decodes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Words at the start of a program's part of the buffer: a mark, the program, its SM, bytes of records, the global time when it began
#: (two words), the SM's clock then, and one that is empty. Then each warp has a count of its records' words, and the SM's clock and the
#: global time when it ended. Each warp's records follow.
HEAD, WARP, MARK = 8, 4, 0xDEADBEEF
#: Words of an aligned store.
_WORDS = 4
_MARK = re.compile(r"// tilescope (\d+)$")
_LEAVES = re.compile(r"^\s*(?:@!?\S+\s+)?(?:bra|brx|ret|exit)\b")
#: Labels that branches lead to. Others are of the debugger's.
_LABEL = re.compile(r"^\s*(?!\$L__(?:tmp|func))[\w$%]+:")
#: Instructions on whole numbers, which the assembler moves past a read of the clock as it likes.
_MOVES = re.compile(
    r"^\s*(?:mov|add|sub|mul|mad|shl|shr|shf|and|or|xor|not|selp|setp|cvt|bfe|bfi|lop3|prmt|min|max)(?:\.(?:lo|hi|wide|sat|approx|l|r|wrap|clamp"
    r"|eq|ne|lt|le|gt|ge|and|or|[usb]\d+|pred))*\s|^\s*(?://.*|\.loc\s.*|\$L__tmp\d+:|\{|\}|\.reg .*)?$"
)
#: The most of these between two records that share a read, and the most records of a stretch.
_APART, _MOST = 24, 15

#: The moments of a stretch of code: each is of the records that share a read of the clock.
Stretch = list[list[int]]


class Lowered(NamedTuple):
    """PTX that writes records, the ``stretches`` by their numbers, and the ``size`` of a program's part of the buffer in bytes."""

    text: str
    stretches: list[Stretch]
    size: int


def mark(record: int) -> str:
    """The instruction of inline PTX that ``lower`` takes for a record. It gives its result a value."""
    return f"mov.u32 $0, 0; // tilescope {record}"


def first(warps: int) -> int:
    """The word of a program's part of the buffer at which the records of its first warp begin."""
    return HEAD + WARP * warps


def words_of(stretch: Stretch) -> int:
    """The words that the records of a stretch take, with those that are left empty."""
    return -(-(len(stretch) + 1) // _WORDS) * _WORDS


def lower(text: str, room: int) -> Lowered:
    """PTX of a kernel with records in place of its marks, for which each warp has ``room`` bytes. Records beyond it are counted."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("{"))
    head = "\n".join(lines[:begin])
    found = re.search(r"^\.reqntid (\d+)", head, re.MULTILINE)
    parameter = re.findall(r"\.param \.u64 .*?(\w+_param_\d+)", head)[-1]
    warps = int(found[1]) // 32 if found else 4
    size = first(warps) * 4 + warps * room
    body, stretches = _body(lines[begin + 1 :], room)
    written = []
    for line in body:
        if re.match(r"\s*(?:ret|exit);", line):
            written += _code(_END, parameter, size)
        written.append(line)
    reads = sum(len(stretch) for stretch in stretches)
    start = _code(
        _START, parameter, size, mark=MARK, room=room, first=first(warps) * 4, reads=reads, given=warps * room
    )
    return Lowered("\n".join([*lines[: begin + 1], *start, *written, ""]), stretches, size)


_PLACE = """
	mov.u32 %tsn, %ctaid.z;
	mov.u32 %tsp, %nctaid.y;
	mov.u32 %tsw, %ctaid.y;
	mad.lo.u32 %tsn, %tsn, %tsp, %tsw;
	mov.u32 %tsp, %nctaid.x;
	mov.u32 %tsw, %ctaid.x;
	mad.lo.u32 %tsn, %tsn, %tsp, %tsw;
	ld.param.u64 %tsb, [{parameter}];
	mad.wide.u32 %tsb, %tsn, {size}, %tsb;
	mov.u32 %tst, %tid.x;
	shr.u32 %tsw, %tst, 5;
	setp.eq.u32 %tsf, %tst, 0;
"""
#: A lane that writes nothing begins beyond all room.
_START = (
    """
	.reg .pred %tsf, %tsl;
	.reg .b32 %tsn, %tsp, %tsw, %tst, %tso, %tsc<{reads}>;
	.reg .b64 %tsb, %tsa, %tsg;
"""
    + _PLACE
    + """
	mov.u64 %tsg, %globaltimer;
	mov.u32 %tsp, %clock;
	@%tsf st.global.b32 [%tsb+24], %tsp;
	mov.u32 %tsp, %smid;
	@%tsf st.global.v2.b32 [%tsb], {{ 0x{mark:X}, %tsn }};
	mov.u32 %tsn, {given};
	@%tsf st.global.v2.b32 [%tsb+8], {{ %tsp, %tsn }};
	@%tsf st.global.b64 [%tsb+16], %tsg;
	mad.wide.u32 %tsa, %tsw, {room}, %tsb;
	add.u64 %tsa, %tsa, {first};
	and.b32 %tsw, %tst, 31;
	setp.eq.u32 %tsl, %tsw, 0;
	selp.b32 %tso, 0, 0x80000000, %tsl;
"""
)
_END = (
    _PLACE
    + """
	setp.ge.s32 %tsl, %tso, 0;
	mov.u64 %tsg, %globaltimer;
	mov.u32 %tsp, %clock;
	mad.wide.u32 %tsb, %tsw, 16, %tsb;
	shr.u32 %tso, %tso, 2;
	@%tsl st.global.v2.b32 [%tsb+32], {{ %tso, %tsp }};
	@%tsl st.global.b64 [%tsb+40], %tsg;
"""
)


def _code(template: str, parameter: str, size: int, **numbers: int) -> list[str]:
    return template.format(parameter=parameter, size=size, **numbers).strip("\n").splitlines()


def _body(lines: Iterable[str], room: int) -> tuple[list[str], list[Stretch]]:
    """The lines with records, and their stretches."""
    made: list[str] = []
    stretches: list[Stretch] = []
    part: list[str | int] = []
    inline = False  # inline code has one way in and one way out, though it may loop
    for line in lines:
        inline = "// begin inline asm" in line or (inline and "// end inline asm" not in line)
        found = _MARK.search(line)
        if found:
            # The result of a mark is not used.
            part.append(int(found[1]))
            if sum(isinstance(one, int) for one in part) == _MOST:
                made += _stretch(part, stretches, room)
                part = []
        elif not inline and (_LEAVES.match(line) or _LABEL.match(line)):
            made += _stretch(part, stretches, room)
            part = []
            made.append(line)
        else:
            part.append(line)
    return [*made, *_stretch(part, stretches, room)], stretches


def _stretch(part: list[str | int], stretches: list[Stretch], room: int) -> Iterator[str]:
    """The code of a part without branches, and its stretch where it has records."""
    moments: Stretch = []
    reads: dict[int, int] = {}
    apart = _APART + 1
    for at, line in enumerate(part):
        if isinstance(line, int):
            if apart > _APART:
                reads[at] = len(moments)
                moments.append([])
            moments[-1].append(line)
            apart = 0
        elif moments:
            apart = apart + 1 if _MOVES.match(line) else _APART + 1
    if not moments:
        yield from (str(line) for line in part)
        return
    number, before = len(stretches), sum(map(len, stretches))
    stretches.append(moments)
    words: list[str] = ["%tsn"] + [f"%tsc{before + moment}" for moment in range(len(moments))]
    size = words_of(moments) * 4
    for at, line in enumerate(part):
        if not isinstance(line, int):
            yield line
        elif at in reads:
            moment = reads[at]
            yield f"\tmov.u32 %tsc{before + moment}, %clock;"
            if moment + 1 == len(moments) or (moment + 2) % _WORDS == 0:
                chunk = (moment + 1) // _WORDS * _WORDS
                if chunk == 0:
                    yield f"\tsetp.le.u32 %tsl, %tso, {room - size};"
                    yield f"\tmov.u32 %tsn, {number};"
                yield _store(words[chunk : moment + 2], chunk * 4)
    yield f"\tadd.u32 %tso, %tso, {size};"
    yield f"\tadd.u64 %tsa, %tsa, {size};"


def _store(words: list[str], at: int) -> str:
    count = {1: 1, 2: 2}.get(len(words), 4)
    words = (words * count)[:count]
    given = f".v{count}.b32 [%tsa+{at}], {{ {', '.join(words)} }}" if count > 1 else f".b32 [%tsa+{at}], {words[0]}"
    return f"\t@%tsl st.global{given};"
