"""State of one session: its run, kernel, case, view and theme. Views derive everything else from it."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import param
from tilescope.captures import SPEC_FILE
from tilescope.models import faults
from tilescope.models.baseline import declarations
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.run import Device

from tilescope_dashboard.data import kernel_cases, url_state
from tilescope_dashboard.data.best_run import best_run, first_shown
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.recordings import Question, Recording, best, having
from tilescope_dashboard.data.run_cache import cases_of, changed_kernels, findings, open_cached, representative
from tilescope_dashboard.figures.style import Theme, theme
from tilescope_dashboard.topics.sentence import Sentence

#: Fields that the address holds.
IN_ADDRESS = ["run", "kernel", "case", "view", "theme", "compared", "panel", "find", "family", "outcome",
              "version", "against", "launch"]  # fmt: skip
#: Views that other code names: those of all kernels, the whole run, its step, and a kernel's first view.
OF_ALL = (HOME := "home", CLAIMS := "claims", WATCH := "watch")
WHOLE_RUN, MODEL, FIRST = "overview", "model", "summary"
#: Views whose title is what is wrong with the shown case, where anything is.
TELL_FAULTS = (FIRST, "advice")
#: What can be open beside or over the views; of a narrow page also the bar's lists.
PANELS = (PROFILE := "profile", GPU := "gpu", RUN := "run", FIND := "find", LISTS := "lists")
_NO_CASE = KernelCase("", "", "")


class State(param.Parameterized):
    """Fields held in the address (``IN_ADDRESS``), and values derived from them.

    ``catalog`` is the answer of ``tilescope.jobs.questions.describe``, empty until it arrives; ``catalog_error`` says why it did not.
    ``error`` says why the chosen run cannot be shown, ``trouble`` why none is open. ``may_launch`` is False for a client on another machine.
    """

    run = param.String(doc="Id of the run.")
    kernel = param.String(doc="Name of the kernel.")
    view = param.String(default=FIRST, doc="A view's name. An unknown one means a kernel's first view.")
    theme = param.String(default="light", doc="dark, or else light.")
    compared = param.List(item_type=str, doc="Runs, or RUN:IMPLEMENTATION, that are compared with the run.")
    case = param.String(doc="The kernel's case, as kernel_cases.case_name names it; empty for its representative.")
    find = param.String(doc="Text that the kernels on Home contain.")
    family = param.String(doc="Family of the kernels on Home; empty for all.")
    outcome = param.String(doc="How the kernels on Home compare with the fastest other implementation; empty for any.")
    version = param.String(doc="Number of the watched script's version; empty for the newest.")
    against = param.String(doc="Number of the version pinned as baseline; empty for the last good one before.")
    launch = param.String(doc="Place of the version's launch; empty for the first.")
    panel = param.String(doc="What is open beside the views, one of PANELS; empty for nothing.")

    runs = param.List(item_type=store.Summary)
    loaded = param.ClassSelector(class_=store.LoadedRun, default=None)
    error = param.String()
    ignored = param.String(doc="Parts of the address that were ignored, and why; empty if none were.")
    gone = param.String(doc="Which run was deleted while it was open; empty once another is chosen.")
    catalog = param.List()
    catalog_error = param.String()
    narrow = param.Boolean(default=False, doc="The page is as narrow as a phone.")
    may_launch = param.Boolean(default=False)
    bar = param.Boolean(default=False, doc="The page has a bar that chooses the case.")

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._known: tuple[store.LoadedRun | None, str, Mapping[str, KernelCase]] = (None, "", {})
        self.refresh()
        if not self.run:
            self.run, self.kernel = first_shown(self.runs, self.kernel)
        self._open()
        self.ignored = "; ".join(self._keep_case(asked=True))
        self.param.watch(self._follow_choice, ["run", "kernel", "compared", "case"])
        self.param.watch(self._keep_panel, "panel")
        self.param.watch(self._leave_deleted, ["runs", "view"])

    def refresh(self) -> None:
        """List the runs on disk again."""
        self.runs = store.list_runs()

    def _leave_deleted(self, *_: param.parameterized.Event) -> None:
        """Open the kernel's best run where the open one was deleted, and say so once."""
        if self.loaded is None or self.loaded.folder.exists():
            return
        try:
            self._folder()
        except (store.StoreError, OSError):
            gone, listed = self.run, store.list_runs()
            found = best_run(listed, self.kernel)
            self.param.update(runs=listed, run=found.id if found else "", kernel=self.kernel)
            self.gone = f"run {url_state.shown(gone)} was deleted: another run is open"

    def take(self, search: str) -> None:
        """Take the valid values of an address's query, and name the others in ``ignored``."""
        good, others = url_state.asked(search, IN_ADDRESS)
        self.param.update(**good)
        if others:
            self.ignored = f"not understood: {', '.join(others)}"

    def _keep_panel(self, event: param.parameterized.Event) -> None:
        if event.new and event.new not in PANELS:
            self.ignore(f"nothing that opens: {url_state.shown(event.new)}")
            self.panel = ""

    def ignore(self, said: str) -> None:
        """Note what was ignored of the address, once: the browser sends a name a second time as the page opens."""
        if said not in self.ignored:
            self.ignored = "; ".join(filter(None, [self.ignored, said]))

    def _follow_choice(self, *events: param.parameterized.Event) -> None:
        names = {event.name for event in events}
        if names == {"case"} and not self.case:
            return
        self.gone = ""
        said = url_state.unopened(self.compared) if "compared" in names else []
        if not url_state.is_kernel(self.kernel):
            said.append(f"not the name of a kernel: {url_state.shown(self.kernel)}")
            names.discard("kernel")
            self.kernel = next(iter(self.loaded.run.kernels), "") if self.loaded else ""
        if "run" in names:
            before = next(event.old for event in events if event.name == "run")
            if "compared" not in names:
                # A baseline implementation of the previous run means the same one in this run.
                self.compared = [url_state.moved(token, before, self.run) for token in self.compared]
            self._open(keep_kernel="kernel" in names)
            # A link that names both keeps both, even if the run lacks the kernel: views show other recordings of it.
        elif "kernel" in names:
            self._follow()
        said += self._keep_case(asked="case" in names)
        # Compare drops baselines that it cannot compare; keep saying so until something else is chosen.
        if said or names != {"compared"}:
            self.ignored = "; ".join(said)

    def _keep_case(self, asked: bool) -> list[str]:
        """Replace a case that the run lacks by the same problem's case, or by none. Returns a message where it was ``asked`` for."""
        if not self.case or not self.cases or self.case in self.cases:
            return []
        wanted, before = self.case, kernel_cases.named(self.case)
        same = before and kernel_cases.closest(
            self.cases.values(), before, workload=before.workload, direction=before.direction
        )
        self.case = kernel_cases.case_name(same) if same and not asked else ""
        return [f"not a case of {self.kernel} in this run: {url_state.shown(wanted)}"] if asked else []

    def go_to(self, **chosen: str) -> None:
        """Set these fields. From a view that is of no kernel, go to the kernel's first view."""
        leaves = self.view in OF_ALL or (self.view == MODEL and "kernel" in chosen)
        self.param.update(**chosen, **({"view": FIRST} if leaves else {}))

    def choose(self, **parts: str) -> None:
        """Choose the case with these ``parts``, fields of a ``KernelCase``; of several, the one closest to the present case.

        If the open run has none, open the best run on the same GPU that has one.
        """
        before = self.standing or _NO_CASE
        found = kernel_cases.closest(self.cases.values(), before, **parts)
        if found is not None:
            self.case = kernel_cases.case_name(found)
            return
        here = [run for run in self.runs if self.device and run.device == self.device.name]
        other = having(
            here, self.kernel, lambda run, kernel: kernel_cases.closest(cases_of(run, kernel), before, **parts)
        )
        if other is not None:
            case = kernel_cases.closest(cases_of(open_cached(other.path), self.kernel), before, **parts)
            self.param.update(run=other.id, kernel=self.kernel, case=kernel_cases.case_name(case or ()))

    @property
    def cases(self) -> Mapping[str, KernelCase]:
        """Cases of the chosen kernel in the chosen run, by name."""
        if self._known[:2] != (self.loaded, self.kernel):
            found = cases_of(self.loaded, self.kernel) if self.loaded else []
            self._known = self.loaded, self.kernel, {kernel_cases.case_name(case): case for case in found}
        return self._known[2]

    @property
    def chosen(self) -> KernelCase | None:
        """The chosen case; None where the address names none."""
        return self.cases.get(self.case)

    @property
    def standing(self) -> KernelCase | None:
        """The chosen case, else the kernel's representative case, else its first; None where the run has none."""
        if self.chosen or self.loaded is None or not self.cases:
            return self.chosen
        case = representative(self.loaded, self.kernel)
        return case if case in self.cases.values() else next(iter(self.cases.values()))

    @property
    def problem(self) -> tuple[str, str]:
        """Workload and pass of ``standing``; two empty texts without one."""
        return self.standing.problem if self.standing else ("", "")

    def answer(self, question: Question) -> Recording | None:
        """The open run if it is a step or answers the question about the kernel, else the best recording that does, on the same GPU if possible.

        None where no recording does.
        """
        if self.loaded is None or not (self.of_step or question.found(self.loaded, self.kernel)):
            return best(self.runs, self.kernel, question, self.device.name if self.device else "")
        return self.opened

    @property
    def of_step(self) -> bool:
        """Whether the open run is a model's step."""
        return self.loaded is not None and self.loaded.of_step

    @property
    def opened(self) -> Recording | None:
        """The open run as a recording."""
        if self.loaded is None:
            return None
        run, device = self.loaded.run, self.loaded.run.device
        known = next((one for one in self.runs if one.id == self.run), None)
        listed = known or store.Summary(
            run.id, self.loaded.folder, run.title, run.started, device.name, device.measured
        )
        return Recording(listed, self.loaded)

    def _open(self, keep_kernel: bool = False) -> None:
        """Open the run. Replace a kernel that it lacks, unless both were chosen together, as by a link.

        A model's step has no kernel, and opens in its view.
        """
        try:
            loaded, error = (open_cached(self._folder()), "") if self.run else (None, "")
        except (store.StoreError, OSError) as problem:
            loaded, error = None, str(problem)
        names, before = (list(run.run.kernels) if run else [] for run in (loaded, self.loaded))
        changes: dict[str, Any] = {"loaded": loaded, "error": error}
        # A kernel that the previous run lacked too was chosen from the library: keep it.
        chosen = self.kernel and (keep_kernel or self.kernel not in before)
        if names and self.kernel not in names and not chosen:
            changes["kernel"] = names[0]
        if loaded and loaded.of_step:
            changes["kernel"] = ""
            if self.view not in (*OF_ALL, WHOLE_RUN):
                changes["view"] = MODEL
        self.param.update(**changes)

    def _folder(self) -> Path:
        """Folder of the run. Raises StoreError for a run that an address must not open."""
        return url_state.run_folder(self.run)

    def _follow(self) -> None:
        """If the open run lacks the kernel, open the best run that has it, or none: another kernel's would be taken for its own."""
        if not self.kernel or (self.loaded and self.kernel in self.loaded.run.kernels):
            return
        found = best_run(self.runs, self.kernel)
        if not found and self.loaded and self.of_step and self.kernel in set(self.loaded.table["kernel"]):
            # A link from when the kernels of a step had pages.
            self.param.update(kernel="", view=MODEL)
            return
        self.run = found.id if found else ""

    @property
    def trouble(self) -> Sentence | None:
        """Why no run is open, and what to do; None where one is."""
        if self.loaded is not None:
            return None
        if self.error:
            return Sentence("This run cannot be shown", f"{self.error}. Choose another run above.")
        if not self.kernel:
            return Sentence("No run yet", "Choose a kernel and press Profile.")
        if not self.catalog or self.declared:
            return Sentence(f"{self.kernel} has no run yet", "Press Profile to make one.")
        close = difflib.get_close_matches(self.kernel, self.kernels[:-1], n=1)
        meant = f"Did you mean {close[0]}? " if close else ""
        return Sentence(f"There is no kernel {url_state.shown(self.kernel)}", f"{meant}Choose a kernel above.")

    @property
    def fault(self) -> Sentence | None:
        """What is wrong with the shown case, or what failed of a kernel without any case; None where nothing did."""
        if self.loaded is None:
            return None
        if self.standing is None:
            failed = faults.of_kernel(self.loaded.run, self.kernel)
            return Sentence(failed.title, failed.text) if failed else None
        first = next(iter(findings(self.loaded, (self.kernel, *self.standing))), None)
        return Sentence(first.title, f"{first.explanation} {first.remedy}".strip()) if first and first.fault else None

    @property
    def look(self) -> Theme:
        """Colours of the chosen theme, for figures of the chosen kernel and run."""
        return self.look_of(*self.origin)

    def look_of(self, *origin: str) -> Theme:
        """As ``look``, for figures of another origin."""
        return theme(self.theme == "dark", *origin, narrow=self.narrow, declared=declarations(self.declared))

    @property
    def origin(self) -> tuple[str, ...]:
        """Kernel, run (its id is its date) and GPU of the numbers, for the names of saved files."""
        return self.kernel, self.run, self.device.name if self.device else ""

    @property
    def table(self) -> pd.DataFrame:
        """Rows of the chosen kernel in the chosen run."""
        if self.loaded is None:
            return schema.frame([])
        return self.loaded.table[self.loaded.table["kernel"] == self.kernel]

    @property
    def device(self) -> Device | None:
        """The run's GPU."""
        return self.loaded.run.device if self.loaded else None

    @property
    def declared(self) -> Mapping[str, Any]:
        """Declaration of the chosen kernel: from the catalog, else from the run."""
        for entry in self.catalog:
            if self.kernel in (entry["name"], entry.get("kernel")):
                return entry
        return dict(self.loaded.run.kernels.get(self.kernel, {})) if self.loaded else {}

    def command(self, verb: str, *options: str) -> str:
        """``tilescope VERB KERNEL OPTIONS`` for the chosen kernel, quoted for a shell but not for HTML.

        A user's own kernel, which has an absolute path, is named by its file; one that a script launched, by the script. No command
        profiles the kernels of another tool's file, which are not declared: then it is empty.
        """
        if self.loaded and self.loaded.run.settings.get("tool"):
            return ""
        declared = self.loaded.run.kernels.get(self.kernel, {}) if self.loaded else {}
        file = str(declared.get("file", ""))
        own = f"{file}:{declared.get('variable', self.kernel)}" if Path(file).is_absolute() else ""
        if self.loaded and Path(file).name == SPEC_FILE and self.loaded.run.title.endswith(".py"):
            own = self.loaded.run.title
        return shlex.join(["tilescope", verb, own or self.kernel or "softmax", *options])

    @property
    def kernels(self) -> list[str]:
        """Kernels that can be chosen: the run's, the library's, other runs', and always the chosen one."""
        of_run = list(self.loaded.run.kernels) if self.loaded else []
        of_others = (name for summary in self.runs for name in summary.kernels)
        known = [*of_run, *(entry["name"] for entry in self.catalog), *of_others, self.kernel]
        return list(dict.fromkeys(filter(None, known)))

    @property
    def changed(self) -> list[str]:
        """Kernels of the run that have changed since."""
        return changed_kernels(self.loaded) if self.loaded else []
