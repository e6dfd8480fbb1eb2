"""NVIDIA's own advice: the results of Nsight Compute's rules as findings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from tilescope.collectors.ncu.rules import NcuRule, load_case
from tilescope.models.advice.finding import NVIDIA, Bound, Finding
from tilescope.runs import artefacts
from tilescope.table.case import Case

#: Kinds of rule that ask for a change; ``INF`` only explains.
_ASKING = ("OPT", "WRN")
#: The scope of an estimate for the whole launch; a ``local`` one is for a part of it.
GLOBAL = "global"


def of_run(folder: Path, kernels: Collection[str] = ()) -> list[Finding]:
    """The findings of NVIDIA's rules in a run, by potential speedup; empty where they were not collected.

    ``kernels`` are the names in the run's table: older runs name a person's own kernel by its variable.
    """
    found = []
    for path in artefacts.of_collector(folder, "ncu_rules", ".json"):
        case, rules = load_case(path)
        variable = case.kernel.rpartition(":")[2]
        of_before = variable in kernels and case.name not in kernels
        found += [replace(one, kernel=variable) if of_before else one for one in findings(case, rules)]
    return sorted(found, key=lambda f: -f.bound.ratio if f.bound else 0.0)


def findings(case: Case, rules: list[NcuRule]) -> Iterator[Finding]:
    """Rules that ask for a change, as findings. The bound is ncu's: 1 / (1 - saved share of the run time)."""
    for rule in rules:
        if rule.kind not in _ASKING:
            continue
        bound, part = None, ""
        if rule.speedup is not None and rule.scope == GLOBAL and rule.speedup < 1:
            bound = Bound(1 / (1 - rule.speedup), f"ncu estimates {rule.speedup * 100:.3g} % of the launch's run time")
        elif rule.speedup is not None:
            part = f" (ncu estimates {rule.speedup * 100:.3g} % of this part alone)"
        title, of = _words(rule.name) + part, (case.name, case.impl, case.direction, case.workload, case.config)
        yield Finding(rule.name, title, rule.text, *of, (), bound, rule.launch, rule.function, NVIDIA)


def _words(name: str) -> str:
    """``MemoryL2Compression`` to ``Memory L2 compression``, ``SOLBottleneck`` to ``SOL bottleneck``."""
    parts = re.findall(r"[A-Z0-9]+(?=[A-Z][a-z]|$)|[A-Z]?[a-z]+|[A-Z0-9]+", name)
    return " ".join(part if not place or part.isupper() else part.lower() for place, part in enumerate(parts))
