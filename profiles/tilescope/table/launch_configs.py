"""With which config each Triton launch was made: meta-parameters, warps and stages, one tidy frame beside the run's table.

A collector that runs or compiles a case writes what it saw beside its artefact. An autotuner's choice is its process's own:
two collectors may have seen two. Pure; imports neither torch nor triton.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from tilescope.files import bounded_reading, json_shape
from tilescope.table.case import Case, config_text
from tilescope.table.case_table import CaseValues
from tilescope.table.schema import CASE_COLUMNS, SchemaError
from tilescope.table.sources import MEASURED, SOURCES

#: What a collector writes beside its artefact of a case: the case's slug and this.
SUFFIX = ".configs.json"
#: Column name to pandas dtype. ``launch`` is the position among the Triton launches that ``source`` saw in the case. ``launched``
#: is the text of all its meta-parameters and options, ``autotuned`` of those that an autotuner chose, empty where there was none.
COLUMNS: dict[str, str] = {
    **dict.fromkeys(CASE_COLUMNS, "str"),
    "launch": "Int32",
    "function": "str",
    "launched": "str",
    "autotuned": "str",
    "source": "str",
}
#: Sources in the order of ``chosen``: whose GPU time counts comes first.
_ORDER = ("torch_profiler", "ncu", "cupti", "tritonparse", "events", "compiler")
#: Launches of a case that are told one by one.
_MOST = 4
#: Options of a launch that are told where they are set.
_RARE = {"num_ctas": 1, "maxnreg": None}


class Launched(TypedDict):
    """One launch: its kernel function, its config by name, and the names that an autotuner chose the values of."""

    function: str
    config: Mapping[str, Any]
    autotuned: list[str]


def launched(function: str, constants: Mapping[str, Any], options: Any, autotuned: Iterable[str] = ()) -> Launched:
    """A launch, by its ``tl.constexpr`` parameters and what Triton says of the compiled kernel (its ``metadata``)."""
    config = {name: _plain(value) for name, value in constants.items()}
    for name in ("num_warps", "num_stages", *_RARE):
        value = getattr(options, name, None)
        if value is not None and value != _RARE.get(name):
            config[name] = value
    return {"function": function, "config": config, "autotuned": [name for name in autotuned if name in config]}


def _plain(value: Any) -> Any:
    """The value, or what an object that is no value is called: never its address, nor a path."""
    value = getattr(value, "value", value)  # what tl.constexpr holds
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ == "dtype":
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))


def write(artefact: Path, case: Case, launches: Iterable[Launched]) -> None:
    """Writes what was launched beside the artefact of the case."""
    artefact.with_name(case.slug + SUFFIX).write_text(json.dumps(list(launches)))


@bounded_reading.parser
def beside(artefact: Path, case: Case, source: str) -> pd.DataFrame:
    """What ``write`` left beside the artefact; no rows where it left nothing."""
    path = artefact.with_name(case.slug + SUFFIX)
    if not path.is_file():
        return frame([])
    found: list[Launched] = json_shape.fit(bounded_reading.data_of(path), list[Launched], "")
    of_case = {name: value for name, value in case.row("", 0, source).items() if name in COLUMNS}
    rows = [
        {
            **of_case,
            "launch": number,
            "function": launch["function"],
            "launched": config_text(launch["config"]),
            "autotuned": config_text({name: launch["config"][name] for name in launch["autotuned"]}),
        }
        for number, launch in enumerate(found)
    ]
    return frame(rows)


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows to a frame with every column, in order."""
    return pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """The same frame, or SchemaError where its columns, launches or sources are not this module's."""
    if list(table.columns) != list(COLUMNS):
        raise SchemaError("the columns of the launches' configs are not this Tilescope's")
    if table["launch"].isna().any() or (table["launch"] < 0).any():
        raise SchemaError("a launch is counted from 0")
    unknown = sorted(set(table["source"]) - set(SOURCES))
    if unknown:
        raise SchemaError(f"unknown source of a launch's config {bounded_reading.one_line(unknown[0], 40)!r}")
    return table


def chosen(cases: Iterable[CaseValues], launched: pd.DataFrame | None) -> list[str]:
    """What each case ran with; empty where it was given its config, or ``launched``, a frame of ours, does not say.

    That is what an autotuner chose of a launch, else all that it was launched with; of several launches each after its
    function. Where collectors saw different ones, each says so. What only the compiler saw is marked as predicted.
    """
    found: dict[tuple[str, ...], str] = {}
    table = frame([]) if launched is None else launched
    for key, rows in table[table["config"] == ""].groupby(CASE_COLUMNS, sort=False):
        seen = {source: _text(rows[rows["source"] == source]) for source in _ORDER}
        measured = {source: text for source, text in seen.items() if text and source in MEASURED}
        if len(set(measured.values())) > 1:
            found[key] = "; ".join(f"{text} ({source})" for source, text in measured.items())
        elif measured or seen["compiler"]:
            found[key] = next(iter(measured.values()), f"{seen['compiler']} (predicted)")
    return [found.get(tuple(case.key[name] for name in CASE_COLUMNS), "") for case in cases]


def _text(rows: pd.DataFrame) -> str:
    """The configs of a case's launches as one text, by function where they differ; equal ones once."""
    texts = rows["autotuned"].where(rows["autotuned"] != "", rows["launched"])
    each = list(dict.fromkeys(zip(rows["function"], texts, strict=True)))
    if len(each) == 1:
        return str(each[0][1])
    told = [f"{function}: {text}" for function, text in each[:_MOST]]
    return "; ".join([*told, f"and {len(each) - _MOST} more"] if len(each) > _MOST else told)
