"""A run of a model as text: the ledger in one line and as a bar, the table of kernels, and what to do next. Pure: run -> text."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tilescope.models import beside, function_names, ledger, next_steps, step_tables, terminal
from tilescope.models.ledger import PARTS, Ledger
from tilescope.table import units
from tilescope.table.run import Device
from tilescope.table.step import Step, Tried

#: Characters of the bar, and the letter of each part.
_WIDTH = 60
_MARKS = dict(zip(PARTS, "█▓?cn·- ", strict=True))
#: A step's energy and what it is counted at, each with its unit and the word before it.
_POWER = {"energy": ("joule", ""), "power": ("watt", ""), "sm_clock": ("hertz", ""), "power_limit": ("watt", "limit ")}
#: Rows of the table, and kernels that are slower beside collectives.
_ROWS, _BESIDE = 15, 3
#: The difference of a library's time, as a share of the kernels', that is told of a tried step, and how many; the wait that is told.
_MOVED, _LIBRARIES = 0.02, 4
#: The share of the predicted saving below which a trial says what became slower.
_MISSED = 0.8
#: Kernels that compute attention whole.
_ATTENTION = re.compile("sdpa|fmha|flash|attention", re.I)


def sentence(found: Ledger) -> str:
    """The ledger in one line: the parts and their sum, and the step where that is another."""
    shown = [(name, seconds) for name, seconds in found.parts.items() if seconds >= 0.0005 * found.step]
    parts = " + ".join(f"{units.text(seconds, 'second')} {PARTS[name]}" for name, seconds in shown)
    agrees = abs(found.error) <= ledger.TOLERANCE
    said = (
        ""
        if agrees
        else f", {abs(found.error):.0%} {'more' if found.error > 0 else 'less'} than the step: the trace is not of it as it runs"
    )
    total, step = units.text(found.total, "second"), units.text(found.step, "second")
    return f"{parts} = {total}{'' if total == step else f' of {step}'}{said}"


def bar(found: Ledger) -> str:
    total = found.total or 1.0
    drawn, done = "", 0.0
    for name, seconds in found.parts.items():
        done += seconds
        drawn += _MARKS[name] * (round(done / total * _WIDTH) - len(drawn))
    key = ", ".join(
        f"{_MARKS[name]} {PARTS[name]}" for name, seconds in found.parts.items() if seconds >= 0.0005 * total
    )
    return f"[{drawn}]  {key}"


def text(step: Step, device: Device) -> str:
    """The step as lines of text: its ledger, what to do next, and its kernels."""
    found = ledger.of(step, device)
    return terminal.plain("\n".join([*lines(step, found, device), table(step, found)]))


def lines(step: Step, found: Ledger, device: Device) -> Iterator[str]:
    """The text of a step and its ledger without their table, line by line."""
    per_step = f" ({units.several(len(step.launches), 'launch', 'launches')})"
    would = "takes" if device.measured else f"on {device.name} is predicted to take"
    yield f"A step {would} {units.text(found.step, 'second')}{per_step}: {step.found or 'the step of a trace'}"
    yield sentence(found)
    yield bar(found)
    if found.slowed > 0.005 * found.step:
        yield f"The profiler slowed the CPU by {units.text(found.slowed, 'second')}, which is left out."
    if step.power:
        yield energy(step)
    yield from communication(step, found, device)
    if suggested := advice(step, found, device):
        yield "What to do next, each as if it were the only change:"
        yield from (f"  {number}. {line}" for number, line in enumerate(suggested, 1))
    else:
        yield next_steps.already_good(found)
    yield from trials(step)


def advice(step: Step, found: Ledger, device: Device) -> list[str]:
    """What to do next, a line each: what a suggestion won where it was tried, else what it is predicted to save.

    Empty for a step that no known change makes faster.
    """
    known = {one.text: one for one in step.tried if one.plain is not None and one.changed is not None}
    return [
        f"{one.text}: tried, {_told(known[one.text])}" if one.text in known else one.line(found.step)
        for one in next_steps.suggestions(step, found, device)
    ]


def _told(tried: Tried) -> str:
    return "changes the results" if _differs(tried) else _won(tried)


def communication(step: Step, found: Ledger, device: Device) -> list[str]:
    """The kernels that are slower beside collectives, where that costs the step enough to matter."""
    return [f"{one.line(device)}." for one in beside.slower(step)[:_BESIDE] if one.lost >= 0.005 * found.step]


def energy(step: Step) -> str:
    of = {
        name: f"{said}{units.text(step.power[name], unit)}"
        for name, (unit, said) in _POWER.items()
        if name in step.power
    }
    used, at = of.pop("energy", ""), ", ".join(of.values())
    return f"A step uses {used}{f' ({at})' if at else ''}."


def trial(tried: Tried) -> str:
    """A suggestion that was tried, in one line: what is wrong first, else predicted against won."""
    if tried.plain is None or tried.changed is None:
        return f"Suggestion {tried.number} cannot be tried: {tried.why}."
    differs = _differs(tried)
    where = f" ({tried.where})" if tried.where else ""
    said = f"differ by {tried.difference:.1e}{where}, {'more than' if differs else 'within'} the {tried.limit:.0e} that rounding explains"
    gain = f"{_won(tried)}: {units.text(tried.plain, 'second')} to {units.text(tried.changed, 'second')}"
    why = f" {tried.why}." if tried.why else ""
    if differs:
        return f"Suggestion {tried.number} changes the results: they {said}. It {gain}.{why}"
    return f"Suggestion {tried.number} {gain}.{why} The results {said}."


def _differs(tried: Tried) -> bool:
    return tried.difference is None or not tried.difference <= tried.limit


def _won(tried: Tried) -> str:
    """What a suggestion won, and its share of what was predicted."""
    won = max((tried.plain or 0.0) - (tried.changed or 0.0), 0.0)
    said = f"won {units.text(won, 'second') if won else 'nothing'}"
    if not tried.predicted:
        return said
    share = f", {units.text(won / tried.predicted, 'ratio', 2)}" if won else ""
    return f"{said}{share} of the predicted {units.text(tried.predicted, 'second')}"


def trials(step: Step) -> Iterator[str]:
    """The suggestions that were tried, each with what became of the kernels."""
    for one in step.tried:
        yield f"{trial(one)} {moved(step, one)}".rstrip()


def moved(step: Step, tried: Tried) -> str:
    """Which libraries' kernels a change made longer or shorter, and the kernel that took the saving; empty where that was not traced."""
    if not tried.kernels or tried.changed is None:
        return ""
    names = defaultdict[str, float](float)
    for launch in step.launches:
        names[launch.name] += launch.duration
    before, after = _by_library(names), _by_library(tried.kernels)
    was, takes = sum(before.values()), sum(after.values())
    apart = {name: abs(after[name] - before[name]) for name in before | after}
    most = sorted((name for name in apart if apart[name] >= _MOVED * was), key=lambda name: -apart[name])[:_LIBRARIES]
    each = ", ".join(f"{name} {_seconds(after[name])} (before {_seconds(before[name])})" for name in most)
    said = f"Its kernels take {_seconds(takes)} (before {_seconds(was)}){f': {each}' if each else ''}."
    if (waits := tried.changed - takes) >= _MOVED * tried.changed:
        said += f" The GPU waits for {_seconds(waits)}."
    if any(map(_ATTENTION.search, names)) and not any(map(_ATTENTION.search, tried.kernels)):
        said += " Attention is no longer one kernel."
    longer = {name: seconds - names[name] for name, seconds in tried.kernels.items()}
    slowest = max(longer, key=lambda name: longer[name])
    missed = tried.plain is not None and tried.plain - tried.changed < _MISSED * tried.predicted
    if missed and longer[slowest] >= _MOVED * was:
        said += f" The most came with {function_names.said(slowest)}: {_seconds(longer[slowest])}."
    return said


def _by_library(spent: Mapping[str, float]) -> defaultdict[str, float]:
    found = defaultdict[str, float](float)
    for name, seconds in spent.items():
        found[function_names.library(name) or "own kernels"] += seconds
    return found


def _seconds(value: float) -> str:
    return units.text(value, "second") if value else "none"


def table(step: Step, found: Ledger) -> str:
    frame = step_tables.kernels(step, found)
    headings = ["kernel", "where", "pass", "launches", "time", "of step", "above roof", "roof", "bytes"]
    rows = [
        [
            row["function"], " ".join(filter(None, [row["module"], row["site"]])), row["pass"], f"{row['launches']}",
            units.text(row["time"], "second"), units.text(row["share"], "ratio", 2), units.text(row["above"], "second"), row["roof"],
            _bytes(row),
        ]
        for row in frame.head(_ROWS).to_dict("records")
    ]  # fmt: skip
    more = (
        f"\n{len(frame) - _ROWS} more rows: the page and the run's folder have them all" if len(frame) > _ROWS else ""
    )
    return terminal.render(headings, rows, keys=7) + more


def _bytes(row: dict[str, float | str]) -> str:
    value = row["moved"] if row["bytes_from"] == "counted" else row["needed"]
    if not isinstance(value, float) or math.isnan(value):
        return ""
    return f"{units.text(value, 'byte')} {row['bytes_from']}"
