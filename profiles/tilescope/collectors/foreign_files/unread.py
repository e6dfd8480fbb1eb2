"""Known files of other tools that Tilescope does not open: what each is, and which file to open instead."""

from __future__ import annotations

import re

#: What to open instead of files without launches.
TRACE = "record a trace with torch.profiler (export_chrome_trace) and open that"
_COUNTERS = "print them with 'ncu --csv --page raw'"
_NSYS = f"of Nsight Systems (nsys), which counts nothing: for times {TRACE}, and for counters {_COUNTERS}"
_ROCPROF = f"of rocprof, for a GPU of AMD: {TRACE}, or one of Proton's profiles"
_NSIGHT_PYTHON = f"of nsight-python, which has no grids of launches: for counters {_COUNTERS}"
#: What a file is, by its first bytes, or by the names in its first lines: columns of CSV, of a printed table, or of JSON.
_NAMES = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), what)
    for pattern, what in (
        (r"\ASQLite format 3\0", f"a database {_NSYS}; of rocprof: {TRACE}"),
        (r"\A\x80[\2\4]", f"a pickle, as torch's memory snapshots are, without launches: {TRACE}"),
        (r"\btime ?\(%\).{1,40}total time ?\(", f"a summary {_NSYS}"),
        (r"\btotal \([kmg]?i?b\).{1,40}count.{1,400}operation", f"a summary {_NSYS}"),
        (r"\bstart ?\([mun]?s\w*\).{1,40}\bduration ?\(", f"a list {_NSYS}"),
        (r"\bpid\b.{1,9}\btid\b.{1,9}\bdevid\b", f"a summary {_NSYS}"),
        (r"agent_id\b.{1,200}\b(start_timestamp|counter_name)\b", f"a table {_ROCPROF}"),
        (r"\bnode_id\b.{1,200}\bagent_type\b", f"a table {_ROCPROF}"),
        (r"\bdomain\b.{1,40}\bfunction\b.{1,40}\bprocess_id\b", f"a table {_ROCPROF}"),
        (r"\bname\b.{1,9}\bcalls\b.{1,9}\btotaldurationns\b", f"a summary {_ROCPROF}"),
        (r"\bindex\b.{1,9}\bkernelname\b.{1,9}\bgpu-id\b", f"a table {_ROCPROF}"),
        (r"\bdispatch_id\b.{1,200}\bgpu_id\b.{1,400}\bkernel_name\b", f"a table {_ROCPROF}"),
        (r"\brocprofiler-sdk(-json)?-tool\b", f"JSON {_ROCPROF}"),
        (r"\bannotation\b.{1,400}\bavgvalue\b", f"a table {_NSIGHT_PYTHON}"),
        (r"\bannotation\b.{1,400}\bcomputeclock\b", f"a table {_NSIGHT_PYTHON}"),
        (
            r"\bline no\b.{1,5}\bsource\b",
            f"ncu's source page, which has lines and no launches: for counters {_COUNTERS}",
        ),
        (r"\bself cpu %.{1,80}\bself cpu\b", f"a printed table of torch.profiler: {TRACE}"),
    )
)
#: Characters in which names are looked for: a table may follow lines of the tool.
_BEGUN = 8192


def named(head: bytes, name: str) -> str:
    """What a file called ``name`` is and what to open instead, by its first bytes; empty for any other file."""
    if name.endswith((".nsys-rep", ".qdrep")):
        return f"a report {_NSYS}"
    text = head[:_BEGUN].decode("latin-1")
    return next((what for pattern, what in _NAMES if pattern.search(text)), "")
