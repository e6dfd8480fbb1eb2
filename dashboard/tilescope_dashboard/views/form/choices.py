"""Choices of the profile form for a kernel, and its notices where it has none. Pure: catalog entry -> choices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tilescope.hardware.ceilings import Product
from tilescope.table.sources import KNOWN

from tilescope_dashboard.components import html_text

#: Not ticked by default: without a GPU the check is interpreted, which takes long.
UNUSUAL = "check"
#: A workload as people write it: extents, a dtype, and the seed of its data.
_SIZE = re.compile(r"(\d+(?:x\d+)*)-[a-z]+\d[a-z0-9]*(?:-s\d+)?")


def collectors(names: Iterable[str]) -> dict[str, str]:
    """Collector names by label: ``compiler: registers, occupancy``."""
    return {f"{name}: {KNOWN[name].finds}" if name in KNOWN else name: name for name in names}


def targets(
    products: Iterable[Product], here: str = "", entry: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Targets with a product by label, ``sm_90 · H200``, and the targets that the kernel does not support, labelled so.

    ``here``, this machine's own, comes first if given. A target is predicted for its first product, which names it.
    """
    named: dict[str, str] = {here: f"{here} · this machine"} if here else {}
    known = dict.fromkeys(product.target for product in products)
    for product in products:
        named.setdefault(product.target, f"{product.target} · {product.name.removeprefix('NVIDIA ')}")
    meant = entry.get("targets") if entry else None
    # An unknown target may work: kernels declare known ones alone.
    refused = [target for target in known if meant and target not in meant]
    return {
        f"{label} · not for {entry['name']}" if entry and target in refused else label: target
        for target, label in named.items()
    }, refused


def entry_of(catalog: Sequence[Mapping[str, Any]], kernel: str) -> Mapping[str, Any] | None:
    """The catalog's entry for a kernel's name or place; None where it has none."""
    return next((entry for entry in catalog if kernel in (entry["name"], entry["kernel"])), None)


def misfit(size: str, entry: Mapping[str, Any]) -> str:
    """Why the text is no valid size; empty if it may be one. The worker checks it fully."""
    known = [text for w in entry["workloads"] for text in (w["id"], w["label"])]
    example = next((match for w in entry["workloads"] if (match := _SIZE.fullmatch(w["id"]))), None)
    if not size or size in known or example is None:
        return ""
    given, count = _SIZE.fullmatch(size), example[1].count("x") + 1
    if given and given[1].count("x") + 1 == count:
        return ""
    many = "1 number" if count == 1 else f"{count} numbers with x between"
    return f"{many}, then a dtype, as {example[0]}"


def standing(may_launch: bool, trouble: str, catalog: Sequence[Any], entry: Mapping[str, Any] | None) -> str:
    """A notice why nothing can be profiled now; empty if it can. ``trouble`` is why there is no catalog."""
    if not may_launch:
        return html_text.notice(
            "info", "Read only.", "Profiling can be started only from the machine this server runs on."
        )
    if trouble:
        return html_text.notice("error", "The kernel library cannot be read.", trouble)
    if not catalog:
        return html_text.notice("info", "Reading the kernel library…")
    if entry is None:
        return html_text.notice("info", "Not in the library:", "give its file above to profile it again.")
    return ""


def greyed(unavailable: Mapping[str, str | None]) -> str:
    """Choices that cannot be made, greyed, and below those that share a reason, that reason, which describes each of them.

    ``unavailable`` maps a choice's label to why, None if it can be made.
    """
    by_reason: dict[str, list[str]] = {}
    for label, reason in unavailable.items():
        if reason:
            by_reason.setdefault(reason, []).append(label)
    return "".join(
        '<div class="greyed">'
        + "".join(
            f'<label><input type="checkbox" disabled aria-describedby="why-{place}"> {escape(label)}</label>'
            for label in labels
        )
        + f'<p class="small quiet" id="why-{place}">{escape(reason)}</p></div>'
        for place, (reason, labels) in enumerate(by_reason.items())
    )
