"""The Overview's tables: a frame's column, its title, and its unit (see ``tables.table``)."""

from __future__ import annotations

#: Rows of ``tilescope.models.summary.summarise``.
CASES = {
    "kernel": ("kernel", "text"),
    "impl": ("impl.", "text"),
    "pass": ("pass", "text"),
    "workload": ("workload", "text"),
    "gpu_time": ("GPU time", "second"),
    "floor_fraction": ("of roofline", "ratio"),
    "speedup_eager": ("vs eager", "times"),
    "speedup_library": ("vs library", "times"),
    "library": ("library", "text"),
    "bytes_ratio": ("bytes", "times"),
    "registers": ("registers", "count"),
    "theoretical_occupancy": ("occupancy", "ratio"),
    "why": ("why", "text"),
}
#: Rows of ``library.library``, numbers first: a phone shows three columns.
KERNELS = {
    "kernel": ("kernel", "text"),
    "gpu_time": ("GPU time", "second"),
    "floor_fraction": ("of roofline", "ratio"),
    "speedup_eager": ("vs eager", "times"),
    "speedup_compile": ("vs compile", "times"),
    "speedup_library": ("vs library", "times"),
    "library": ("library", "text"),
    "bytes_ratio": ("bytes", "times"),
    "workload": ("workload", "text"),
    "from_run": ("from", "text"),
    "why": ("why", "text"),
}
#: Rows of ``library.listing``.
RUNS = {
    "started": ("started (UTC)", "text"),
    "title": ("run", "text"),
    "device": ("GPU", "text"),
    "what": ("kind", "text"),
    "kernels": ("kernels", "text"),
    "sources": ("collectors", "text"),
    "cases": ("cases", "count"),
    "state": ("state", "text"),
}
