"""A watch as text: each value as it comes, what is wrong, the findings that came or went, and the diff of the source."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import sys
from collections.abc import Iterator, Sequence

from tilescope.models import terminal, versions
from tilescope.notebook.watching import Comparison, Version, Watch

#: Widths of the column of names, and of each other one.
_NAME, _VALUE = 28, 14
#: The most lines of a script's output that are printed.
_PRINTED = 8
#: Stands for the place of a launch among what was told.
_WRONG = -1


class Telling:
    """Tells the versions of a watch, a line at a time and each line once."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._version: Version | None = None
        self._told: set[tuple[int, str]] = set()
        self._last = ""
        self._ended = self._stays = self._printed = False
        self._compared_by: tuple[Version | None, list[versions.Pair]] = None, []

    def lines(self, version: Version) -> Iterator[str]:
        """The lines about a version that were not told yet; all of them where a user has chosen its baseline or pairs otherwise."""
        compared = self._watch.compared(version)
        base, by_hand = compared.baseline, [pair for pair in compared.pairs if pair.how == "hand"]
        if version is not self._version or (base, by_hand) != self._compared_by:
            if self._version and not self._ended and self._version not in self._watch.versions:
                yield f"{self._version.title} was not finished: a file was saved"
            self._version, self._told, self._last, self._compared_by = version, set(), "", (base, by_hand)
            self._ended = self._stays = self._printed = False
            yield ""
            yield f"{version.title}: {self._watch.script}"
        for said in version.wrong if version.state != "running" else ():
            if (_WRONG, said) not in self._told:
                self._told.add((_WRONG, said))
                yield f"wrong: {said}"
        for place, pair in enumerate(compared.pairs if version.cases else ()):
            yield from self._values(place, pair, base, version)
        if version.state == "running":
            return
        yield from () if self._ended else self._findings(compared)
        if version.state == "failed" and not self._stays:
            self._stays = True
            yield f"{base.title} stays the last good one" if base else "no version is good yet"
        if not self._ended:
            yield from compared.conditions
            yield from compared.diff
        if not self._printed and not (version.unmade and version.doing):
            self._printed = True
            yield from _output(version)
        if not self._ended:
            yield f"{version.title} took {version.seconds:.1f} s"
            if version.unmade and version.doing:
                yield from filter(None, [version.doubt])
                yield f"{version.doing}: the script's output follows, as it needs their results"
        self._ended = True

    @staticmethod
    def _findings(compared: Comparison) -> Iterator[str]:
        for pair in compared.pairs if compared.candidate.cases else ():
            first = "new" if pair.baseline else "found"
            for word, findings in ((first, pair.came), ("still", pair.stayed), ("gone", pair.went)):
                if not _is_wrong(pair):
                    yield from (f"{word}: {f.title}{f', {f.bound.text}' if f.bound else ''}" for f in findings)

    def _values(self, place: int, pair: versions.Pair, base: Version | None, version: Version) -> Iterator[str]:
        baseline, candidate = pair.baseline, pair.candidate
        if candidate is None or _is_wrong(pair):
            if candidate is None and version.state != "running" and not self._ended:
                yield f"gone: {baseline.title if baseline else ''}"
            return
        # A time by another collector than the baseline's is told if no better one comes.
        waits = {"gpu_time"} if version.state == "running" and baseline and "gpu_time" in baseline.values else set()
        fresh = [
            change
            for change in pair.changes
            if change.candidate is not None
            and (place, change.metric) not in self._told
            and not (change.baseline is None and change.metric in waits)
        ]
        if fresh and self._last != candidate.title:
            how = "hand" if pair.how == "hand" else f"its {pair.how}"
            renamed = f", paired with {baseline.title} by {how}" if baseline and pair.how != "name" else ""
            yield f"{candidate.title}{renamed}"
            heads = (base.title if base and baseline else "", version.title, "change" if baseline else "")
            yield _row("", heads)
            self._last = candidate.title
        for change in fresh:
            self._told.add((place, change.metric))
            before, now, said = change.texts()
            yield _row(change.label, (before if baseline else "", now, said if baseline else ""))


async def follow(watch: Watch, *, once: bool = False) -> int:
    """Prints the versions as they come, and does what is typed. Returns the status of the first, if only that is wanted."""
    telling = Telling(watch)
    with _listening(watch):
        async for version in watch.follow():
            done = version.state != "running"
            terminal.say(*telling.lines(version))
            if done and not version.doing:
                if once:
                    return int(version.state == "failed")
                terminal.say(*_pairing(watch, version))
                print(f"watching {', '.join(sorted(path.name for path in watch.files))}")
            sys.stdout.flush()
    return 0


def obey(watch: Watch, line: str) -> None:
    """Does what a line asks about the newest version: ``pair 2 1`` or ``pair 2 none`` pairs its second launch with one of its
    baseline, ``pin 1`` or ``pin none`` chooses the baseline. Raises ValueError for any other line.
    """
    now = watch.versions[-1]
    base = watch.compared(now).baseline
    match line.split():
        case ["pair", launch, other] if base and (case := _numbered(now.cases, launch)):
            if other == "none" or _numbered(base.cases, other):
                watch.pair(now, case, base, _numbered(base.cases, other))
                return
        case ["pin", number]:
            pinned = next((one for one in watch.versions if str(one.number) == number), None)
            if number == "none" or pinned:
                watch.pin(pinned)
                return
    raise ValueError(
        f"not understood: {line.strip()}. Type 'pair LAUNCH LAUNCH', 'pair LAUNCH none', 'pin VERSION' or 'pin none'"
    )


def _numbered(cases: Sequence[versions.Case], number: str) -> versions.Case | None:
    return dict(enumerate(cases, 1)).get(int(number)) if number.isdecimal() else None


def _pairing(watch: Watch, version: Version) -> Iterator[str]:
    """How launches can be paired otherwise; nothing where their names tell, or there is one on each side."""
    compared = watch.compared(version)
    base, renamed = compared.baseline, any(pair.candidate and pair.how != "name" for pair in compared.pairs)
    if base and renamed and max(len(version.cases), len(base.cases)) > 1:
        for one in (version, base):
            yield f"launches of {one.title}: {', '.join(f'{n} {case.title}' for n, case in enumerate(one.cases, 1))}"
        yield "type 'pair 1 2' to pair a launch with another of the baseline, 'pair 1 none' with none"


@contextlib.contextmanager
def _listening(watch: Watch) -> Iterator[None]:
    """Obeys the lines of standard input, where it is a terminal or a pipe."""
    loop = asyncio.get_running_loop()

    def hear() -> None:
        typed = os.read(sys.stdin.fileno(), 4096).decode(errors="replace")
        for line in typed.splitlines():
            try:
                obey(watch, line)
            except ValueError as error:
                terminal.say(str(error))
        if not typed:
            loop.remove_reader(sys.stdin)

    with contextlib.suppress(OSError, ValueError, AttributeError):  # a file, or none
        loop.add_reader(sys.stdin, hear)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            loop.remove_reader(sys.stdin)


def mime(watch: Watch, version: Version) -> dict[str, str]:
    """All lines about a version, as text and as HTML."""
    doing = [f"{version.doing} …"] if version.state == "running" else []
    text = "\n".join([*Telling(watch).lines(version), *doing]).strip()
    return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}


def _output(version: Version) -> Iterator[str]:
    """The last lines that the script printed, and whether they lack a launch's results."""
    if version.doubt:
        yield f"what the script says of {version.unmade}'s results is void, as not all of its programs ran: {version.doubt}"
    printed = version.output.splitlines()
    if printed:
        yield "printed:" if len(printed) <= _PRINTED else f"printed, the last {_PRINTED} of {len(printed):,} lines:"
    yield from (f"  {line}" for line in printed[-_PRINTED:])


def _is_wrong(pair: versions.Pair) -> bool:
    return any(finding.fault for finding in (pair.candidate.findings if pair.candidate else ()))


def _row(name: str, cells: tuple[str, ...]) -> str:
    return f"{name:{_NAME}}{''.join(f'{cell:>{_VALUE}}' if cell else '' for cell in cells)}".rstrip()
