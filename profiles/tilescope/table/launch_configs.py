"""The config of each Triton launch: its meta-parameters, warps and stages, in a tidy frame beside the run's table.

A collector that runs or compiles a case writes the configs beside its artefact. Each process autotunes by itself, so two
collectors may see different choices. Pure; imports neither torch nor triton.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from tilescope.files import bounded_reading, json_shape
from tilescope.table import schema
from tilescope.table.case import Case, config_text
from tilescope.table.case_table import CaseValues
from tilescope.table.run import SchemaError
from tilescope.table.schema import CASE_COLUMNS, named
from tilescope.table.sources import MEASURED, SOURCES
from tilescope.table.units import several

#: Suffix of the file of configs beside a case's artefact.
SUFFIX = ".configs.json"
#: Column name to pandas dtype. ``launch`` numbers the Triton launches that ``source`` saw in the case. ``launched`` is the text of
#: all meta-parameters and options, ``autotuned`` of those that an autotuner chose: empty without an autotuner.
COLUMNS: dict[str, str] = {
    **dict.fromkeys(CASE_COLUMNS, "str"),
    "launch": "Int32",
    "function": "str",
    "launched": "str",
    "autotuned": "str",
    "source": "str",
}
#: Sources in the order of ``chosen``: first those with GPU times.
_ORDER = ("torch_profiler", "ncu", "cupti", "tritonparse", "events", "compiler")
#: Launches of a case that ``chosen`` lists one by one.
_MOST = 4
#: Options that are listed only where they differ from these defaults.
_RARE = {"num_ctas": 1, "maxnreg": None}
#: Resources of a launch by which configs differ, and the sources that see launches on a GPU.
_RESOURCES, _ON_GPU = ("block_threads", "shared_memory", "registers"), ("torch_profiler", "cupti", "ncu")
#: Cases that a note names.
_FEW = 3


class Launched(TypedDict):
    """One launch: its kernel function, its config by name, and the names of the values that an autotuner chose."""

    function: str
    config: Mapping[str, Any]
    autotuned: list[str]


def launched(function: str, constants: Mapping[str, Any], options: Any, autotuned: Iterable[str] = ()) -> Launched:
    """A launch with these ``tl.constexpr`` parameters. ``options`` is the compiled kernel's ``metadata``."""
    config = {name: _plain(value) for name, value in constants.items()}
    for name in ("num_warps", "num_stages", *_RARE):
        value = getattr(options, name, None)
        if value is not None and value != _RARE.get(name):
            config[name] = value
    return {"function": function, "config": config, "autotuned": [name for name in autotuned if name in config]}


def _plain(value: Any) -> Any:
    """The value, or the name of an object that is not plain data: never its address, nor a path."""
    value = getattr(value, "value", value)  # of a tl.constexpr
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ == "dtype":
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))


def write(artefact: Path, case: Case, launches: Iterable[Launched]) -> None:
    """Writes the configs of launches beside the artefact of the case."""
    artefact.with_name(case.slug + SUFFIX).write_text(json.dumps(list(launches)))


@bounded_reading.parser
def beside(artefact: Path, case: Case, source: str) -> pd.DataFrame:
    """Reads the configs that ``write`` left beside the artefact. Without such a file the frame is empty.

    Raises Unreadable for a damaged file.
    """
    path = artefact.with_name(case.slug + SUFFIX)
    if not path.is_file():
        return frame([])
    found = json_shape.fit(bounded_reading.data_of(path), list[Launched], "")
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
    """Makes a frame of rows, with every column in order."""
    return pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame. Raises SchemaError for other columns or sources, and for launches below 0."""
    schema.check_columns(table.columns, COLUMNS)
    schema.check_known(table, "source", SOURCES)
    if table["launch"].isna().any() or (table["launch"] < 0).any():
        raise SchemaError("launches count from 0")
    return table


def chosen(cases: Iterable[CaseValues], launched: pd.DataFrame | None) -> list[str]:
    """The config that each case chose for itself; empty where the case names its config or ``launched`` has none of it.

    ``launched`` is a frame of this module. The text of a launch is what an autotuner chose, or else the whole config; several
    launches are listed by function. Where measuring collectors saw different configs, the text names each collector. A config
    that only the compiler saw is marked as predicted.
    """
    found: dict[tuple[str, ...], str] = {}
    table = frame([]) if launched is None else launched[launched["config"] == ""]
    # Pairs of a function and its config in the order of launches, without repetitions, by case and source.
    each: dict[tuple[str, ...], dict[str, dict[tuple[str, str], None]]] = {}
    columns = [*CASE_COLUMNS, "source", "function", "launched", "autotuned"]
    for *key, source, function, whole, tuned in table[columns].itertuples(index=False, name=None):
        each.setdefault(tuple(key), {}).setdefault(source, {})[function, tuned or whole] = None
    for case, of_source in each.items():
        seen = {source: _text(list(of_source[source])) for source in _ORDER if source in of_source}
        measured = {source: text for source, text in seen.items() if text and source in MEASURED}
        if len(set(measured.values())) > 1:
            found[case] = "; ".join(f"{text} ({source})" for source, text in measured.items())
        elif measured or seen.get("compiler"):
            found[case] = next(iter(measured.values()), f"{seen.get('compiler')} (predicted)")
    return [found.get(tuple(case.key[name] for name in CASE_COLUMNS), "") for case in cases]


def _text(each: Sequence[tuple[str, str]]) -> str:
    """The configs of a case's functions, pairs of a name and a text, as one text: by function where there are several."""
    if len(each) == 1:
        return each[0][1]
    told = [f"{function}: {text}" for function, text in each[:_MOST]]
    return "; ".join([*told, f"and {len(each) - _MOST} more"] if len(each) > _MOST else told)


def without_guesses(table: pd.DataFrame, configs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without the compiler's rows of these cases, and a note on them.

    An implementation that chooses its config by timing takes a guess where there is no GPU. ``configs`` is a frame of this module.
    """
    compiled = table["source"].eq("compiler")
    if not compiled.any() or not table["source"].isin(_ON_GPU).any():
        return table, []
    resources = table[table["metric"].isin(_RESOURCES) & table["launch"].notna()]
    unlike = pd.concat([_apart(resources, ["function", "metric"], "value"), _apart(configs, ["function"], "launched")])
    left_out = compiled & pd.MultiIndex.from_frame(table[CASE_COLUMNS]).isin(pd.MultiIndex.from_frame(unlike))
    cases = ["/".join(filter(None, case)) for case in dict.fromkeys(named(table[left_out]))]
    if not cases:
        return table, []
    told = ", ".join(cases[:_FEW]) + (f" and {len(cases) - _FEW} more" if len(cases) > _FEW else "")
    note = f"the compiler's values of {several(len(cases), 'case')} are left out, because another config ran: {told}"
    return table[~left_out].reset_index(drop=True), [note]


def _apart(rows: pd.DataFrame, of: list[str], value: str) -> pd.DataFrame:
    """Cases with another ``value`` on the GPU than the compiler's, of the same columns ``of``."""
    rows = rows[rows["source"].isin(("compiler", *_ON_GPU))]
    key = [*CASE_COLUMNS, *of]
    each = rows.assign(compiled=rows["source"].eq("compiler"))[[*key, "compiled", value]].drop_duplicates()
    on_both = each.groupby(key)["compiled"].transform("nunique").eq(2)
    return each[on_both].drop_duplicates([*key, value], keep=False)[CASE_COLUMNS].drop_duplicates()
