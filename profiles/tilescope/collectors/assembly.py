"""Reads figures from a kernel's PTX and from the report of NVIDIA's assembler. Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_OPERAND = re.compile(r"\.[bfus](\d+)$")
_ACCESS = re.compile(r"^\s*(?:@!?%\w+\s+)?(ld|st)((?:\.[\w:]+)*)\s", re.MULTILINE)
_ASYNC_COPY = re.compile(
    r"^\s*(?:@!?%\w+\s+)?cp\.async\.c[ag]\.shared\.global\S*\s+[^,]*,[^,]*,\s*(0x[\da-fA-F]+|\d+)", re.MULTILINE
)
_TENSOR = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)\b", re.MULTILINE)
_WGMMA = re.compile(r"^\s*(?:@!?%\w+\s+)?wgmma\.mma_async\b", re.MULTILINE)
#: ptxas's message where it serializes wgmma instructions, and the metric that counts them for each reason.
_SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized due to ([^\n]+)")
SERIALIZED = {
    "insufficient register resources": "wgmma_short_of_registers",
    "non wgmma instructions": "wgmma_accumulator_used",
    "": "wgmma_serialized_otherwise",
}
_PATH = re.compile(r'"[^"\n]*/([^"/\n]+)"')
#: LLVM's line directive. Its comment names every frame, innermost first: ``a.py:3:9 @[ b.py:7:1 ]``.
_LOC = re.compile(r"^(\s*\.loc\s+)\d+\s+\d+(\s+\d+\s*//\s*)(.+)$", re.MULTILINE)
_FRAME = re.compile(r"([^\s\[\]@:]+):(\d+):\d+")
#: The same where the place of the call stands in the directive, as Triton 3.9 writes it.
_INLINED = re.compile(
    r"^(\s*\.loc\s+(\d+\s+\d+\s+\d+))(?:, function_name \S+, inlined_at ((\d+)\s+(\d+)\s+(\d+)))?(\s*//\s*)(\S+)$",
    re.MULTILINE,
)
#: Inline assembly, such as a load: its first place, and what follows.
_INLINE = re.compile(r"(// begin inline asm\n(?:\s*\.loc\b.*\n)*)((?:.*\n)*?)(?=\s*// end inline asm)")
_FROM_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s*(.*?)\s*;?\s*$")


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel, as ``ptxas -v`` reports them.

    ``registers``, ``stack_bytes``, ``spill_bytes_stored`` and ``spill_bytes_loaded`` are per thread; the latter count bytes of spill
    instructions in the code, not executed ones. ``barriers`` and ``static_shared_memory`` (bytes) are per block.
    """

    registers: int
    barriers: int
    stack_bytes: int
    spill_bytes_stored: int
    spill_bytes_loaded: int
    static_shared_memory: int


def resources(report: str, function: str) -> Resources:
    """The resources of ``function`` in the output of ``ptxas -v``. Raises ValueError where they are missing."""
    _, found, section = report.partition(f"Compiling entry function '{function}'")
    section = section.partition("Compiling entry function")[0]

    def number(pattern: str) -> int:
        match = re.search(pattern, section)
        return int(match[1]) if match else 0

    if not found or "registers" not in section:
        raise ValueError(f"ptxas reported nothing about {function}")
    return Resources(
        registers=number(r"Used (\d+) registers"),
        barriers=number(r"used (\d+) barriers"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        spill_bytes_stored=number(r"(\d+) bytes spill stores"),
        spill_bytes_loaded=number(r"(\d+) bytes spill loads"),
        static_shared_memory=number(r"(\d+) bytes smem"),
    )


def widest_access(ptx: str, kind: str) -> int | None:
    """Bytes of the widest global load (``kind="ld"``) or store (``"st"``) of a thread; None without any.

    Asynchronous copies to shared memory count as loads. Bulk copies (TMA) are not made by single threads and do not count.
    """
    widths = [int(width, 0) for width in _ASYNC_COPY.findall(ptx)] if kind == "ld" else []
    for operation, suffixes in _ACCESS.findall(ptx):
        element = _OPERAND.search(suffixes)
        if operation == kind and ".global" in suffixes and element:
            vector = re.search(r"\.v(\d+)", suffixes)
            widths.append(int(element[1]) // 8 * (int(vector[1]) if vector else 1))
    return max(widths, default=None)


def tensor_instructions(ptx: str) -> int:
    """Tensor-core instructions in the code (``mma.sync``, ``wgmma``, ``tcgen05.mma``), each counted once."""
    return len(_TENSOR.findall(ptx))


def serialized_wgmma(ptx: str, report: str, function: str) -> dict[str, int]:
    """The wgmma instructions of ``function`` that ptxas serializes, by the metrics of SERIALIZED; empty without wgmma.

    ptxas serializes all of them, for one reason, or none. ``report`` is the output of ``ptxas -v``.
    """
    count = len(_WGMMA.findall(ptx))
    if not count:
        return {}
    said = [reason for reason in _SERIALIZED.findall(report) if f"function '{function}'" in reason]
    why = next((metric for words, metric in SERIALIZED.items() if said and words in said[0]), None)
    return {metric: count if metric == why else 0 for metric in SERIALIZED.values()}


def block_threads(ptx: str) -> int | None:
    """Threads of a block that the code was compiled for; None where it does not say."""
    match = re.search(r"\.reqntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", ptx)
    if not match:
        return None
    x, y, z = (int(extent or 1) for extent in match.groups())
    return x * y * z


def complaint(stderr: str) -> str:
    """The line of ptxas's output that says what is wrong: the first error, since the last line only says that it failed."""
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    wrong = (line for line in said if re.search(r"\b(error|fatal)\s*:", line))
    return re.sub(r"^ptxas \S+, ", "", next(wrong, said[-1] if said else "no word of why"))


def frames(comment: str) -> list[tuple[str, int]]:
    """Files and lines in the comment of a ``.loc`` directive, innermost first."""
    return [(file, int(line)) for file, line in _FRAME.findall(comment)]


def own_line(places: Iterable[tuple[str, int]], file: str) -> int | None:
    """The line of the innermost of ``places`` in ``file``, where other code is inlined; None without one."""
    return next((line for name, line in places if name == file and line > 0), None)


def of_file(texts: Mapping[str, str], file: str) -> dict[str, str]:
    """A kernel's texts with ``file`` as its file. Triton's cache has them from the first file with this code, which a copy shares."""
    first = re.search(r'^#loc = loc\("(?:[^"\n]*/)?([^"/\n]+)":', texts.get("ttir", ""), re.MULTILINE)
    if first is None or first[1] == file:
        return dict(texts)
    name = re.compile(rf'(?<=[/"\s]){re.escape(first[1])}(?=[":])')
    return {stage: name.sub(file, text) for stage, text in texts.items()}


def with_callers(ptx: str) -> str:
    """PTX whose line directives name the callers of inlined code in their comments alone, as ``frames`` reads them.

    Inline assembly has the place of its first instruction: from Triton 3.9 on each further one has the next line of the file.
    """
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"(?:[^"\n]*/)?([^"/\n]+)"', ptx, re.MULTILINE))
    callers = dict[str, str]()

    def written(match: re.Match[str]) -> str:
        directive, place, caller, file, line, column, gap, name = match.groups()
        if caller is None:
            callers[place] = ""
            return match[0]
        # The directive of the caller's own place comes before.
        callers[place] = f" @[ {files.get(file, '')}:{line}:{column}{callers.get(caller, '')} ]"
        return f"{directive}{gap}{name}{callers[place]}"

    one_place = _INLINE.sub(lambda match: match[1] + re.sub(r"^\s*\.loc\b.*\n", "", match[2], flags=re.MULTILINE), ptx)
    return _INLINED.sub(written, one_place)


def attributed(ptx: str, file: str) -> str:
    """PTX with ``.loc`` directives of lines of ``file`` only, so that inlined code counts where it is used.

    ``tl.max`` is code of Triton's library, and ptxas would keep that place only.
    """
    number = re.search(rf'^\s*\.file\s+(\d+)\s+"(?:[^"\n]*/)?{re.escape(file)}"', ptx, re.MULTILINE)
    if not number:
        return ptx

    def own(match: re.Match[str]) -> str:
        line = own_line(frames(match[3]), file)
        return match[0] if line is None else f"{match[1]}{number[1]} {line}{match[2]}{match[3]}"

    return _LOC.sub(own, ptx)


def sass(disassembly: str) -> str:
    """The output of ``nvdisasm -c -g`` as lines of one instruction or label, followed by the place as in PTX: ``// a.py:3``.

    The ``NOP``s that pad the last 128 bytes have no place.
    """
    kept, place = list[str](), ""
    for text in disassembly.splitlines():
        if named := _FROM_LINE.match(text):
            place = f"  // {named[1].rpartition('/')[2]}:{named[2]}"
        elif instruction := _INSTRUCTION.match(text):
            kept.append(f"/*{instruction[1]}*/  {instruction[2]}{place}")
        elif re.match(r"^\.L\w+:", text):
            kept.append(text.strip())
    padding = len(kept)
    while padding and re.match(r"/\*\w+\*/  NOP\b|\.L", kept[padding - 1]):
        padding -= 1
    return "\n".join([*kept[:padding], *(text.partition("  //")[0] for text in kept[padding:])]) + "\n"


def portable(text: str) -> str:
    """The text without directories in file names and without PTX's debug sections."""
    code = re.split(r"^\s*\.section\s+\.debug", text, maxsplit=1, flags=re.MULTILINE)[0]
    return _PATH.sub(r'"\1"', code)
