"""Fields of the profile form for a kernel of the catalog: workloads, passes, implementations, collectors and the target GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope.hardware import ceilings
from tilescope.hardware.ceilings import Product
from tilescope.jobs.plan import DEFAULT_TARGET, Request
from tilescope.models.baseline import called, declarations
from tilescope.table.sources import KNOWN

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.data.this_machine import Machine
from tilescope_dashboard.figures.style import distinct

#: Not ticked by default: without a GPU the check is interpreted, which takes long.
_UNUSUAL = "check"
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


#: Label of the tick that sweeps a kernel.
EVERY_CONFIG = "every config (autotune)"
#: A kernel may have dozens of workloads.
_MANY = {"maxHeight": 360, "overflow": "auto", "flexWrap": "nowrap"}


class ProfileFields(layout.Part):
    """Choices for one kernel of the catalog."""

    def __init__(self) -> None:
        super().__init__()
        self._filled: Mapping[str, Any] | None = None
        self._machine = Machine("", {})
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "size": "small"}
        self._workloads = pmui.CheckBoxGroup(label="workloads", options={}, sx=_MANY, **wide)
        self._size = pmui.TextInput(label="another size", **wide)
        self._size.param.watch(lambda event: self._judge(event.new), "value_input")
        self._passes = pmui.CheckBoxGroup(label="pass", options=[], inline=True, **wide)
        self._impls = pmui.CheckBoxGroup(label="implementations", options=[], inline=True, **wide)
        self._missing, self._unable = html_text.pane(visible=False), html_text.pane(visible=False)
        self._every = pmui.Checkbox(label=EVERY_CONFIG, size="small")
        self._collectors = pmui.CheckBoxGroup(label="collectors", options={}, **wide)
        options = targets(ceilings.PRODUCTS)[0]
        self._target = pmui.Select(label="target GPU", options=options, value=DEFAULT_TARGET, **wide)
        self._of_kernel = (self._workloads, self._size, self._passes, self._impls, self._every)
        *above, every = self._of_kernel
        below = [self._missing, every, self._collectors, self._unable, self._target]
        self.layout = layout.column(*above, *below)

    def offer(self, machine: Machine) -> None:
        """Offer what can run on this machine, the rest greyed."""
        if machine == self._machine:
            return
        self._machine = machine
        able = [name for name, reason in machine.unavailable.items() if reason is None]
        usual = [name for name in able if name != _UNUSUAL]
        self._collectors.param.update(options=collectors(able), value=usual)
        labelled = collectors(machine.unavailable)
        _grey(self._unable, {label: machine.unavailable[name] for label, name in labelled.items()})
        if machine.target:
            self._offer_targets(machine.target)

    def fill(self, entry: Mapping[str, Any]) -> None:
        """Offer the kernel's choices. The person's choices are kept until the kernel changes."""
        if entry is self._filled:
            return
        self._filled, workloads = entry, entry["workloads"]
        options = {f"{w['label']} · {w['id']}" if w["label"] else w["id"]: w["id"] for w in workloads}
        # The default is the smallest workload that is not empty.
        smallest = min((w for w in workloads if w["elements"]), key=lambda w: w["elements"], default=None)
        self._workloads.param.update(options=options, value=[smallest["id"]] if smallest else [])
        example = next(iter(options.values()), "")
        self._size.label = f"another size, as {example}" if example else "another size"
        self._judge(self._size.value_input or "")
        self._passes.param.update(options=list(entry["passes"]), value=list(entry["passes"]))
        impls = entry["implementations"]
        able = [name for name, declared in impls.items() if declared["available"]]
        names = distinct(impls, 40, lambda impl: called(impl, declarations(entry)))
        self._impls.param.update(options={names[impl]: impl for impl in able}, value=able)
        missing = {names[impl]: declared["requires"] for impl, declared in impls.items() if not declared["available"]}
        said = {name: f"not installed: pip install {' '.join(needed)}" for name, needed in missing.items()}
        _grey(self._missing, said)
        self._every.visible = any(declared["configs"] for declared in impls.values())
        self._offer_targets(self._target.value)

    def _offer_targets(self, wanted: str) -> None:
        """Offer the GPUs with the wanted one chosen. GPUs that the kernel does not support cannot be chosen."""
        options, refused = targets(ceilings.PRODUCTS, self._machine.target, self._filled)
        usable = [target for target in options.values() if target not in refused]
        value = next((target for target in (wanted, DEFAULT_TARGET) if target in usable), next(iter(usable), wanted))
        self._target.param.update(options=options, disabled_options=refused, value=value)

    def _judge(self, size: str) -> None:
        """Validate the size while it is typed."""
        wrong = misfit(size.strip(), self._filled) if self._filled else ""
        self._size.param.update(error_state=bool(wrong), helper_text=wrong)

    def enable(self, able: bool) -> None:
        for widget in self._of_kernel:
            widget.disabled = not able

    def request(self, entry: Mapping[str, Any]) -> Request:
        """The request of the fields. Raises ValueError, with a message for the person, for a missing value."""
        size = self._size.value.strip()
        chosen = {
            "a workload": [*self._workloads.value, *([size] if size else [])],
            "a pass": self._passes.value,
            "an implementation": self._impls.value,
            "a collector": self._collectors.value,
        }
        missing = [what for what, values in chosen.items() if not values]
        if missing:
            raise ValueError(f"choose {' and '.join(missing)}.")
        workloads, passes, impls, with_ = (tuple(values) for values in chosen.values())
        return Request(
            kernels=(entry["kernel"],), implementations=impls, workloads=workloads, directions=passes,
            collectors=with_, target=self._target.value,
            configs=("all",) if self._every.visible and self._every.value else (), title=entry["name"],
        )  # fmt: skip


def _grey(place: pn.pane.HTML, unavailable: Mapping[str, str | None]) -> None:
    markup = greyed(unavailable)
    place.param.update(object=markup, visible=bool(markup))
