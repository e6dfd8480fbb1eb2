"""``tilescope.capture``: records the launches of live code, and profiles each as it was made. Imports torch when used."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.captures import COUNTED_FILE
from tilescope.jobs import supervisor, warm
from tilescope.jobs.job import Given, Job, OnEvent
from tilescope.jobs.plan import AUTO, choose_collectors, choose_target, shortened
from tilescope.notebook import live_progress
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store
from tilescope.table.case import Case
from tilescope.table.run import Failure, Skipped
from tilescope.table.units import several

if TYPE_CHECKING:
    import pandas as pd

    from tilescope.captures.recorder import Recorder

#: The folder of captured launches, below the folder of runs, and in the run that was made of them.
CAPTURED = "captured"
#: Default limit in seconds of work for interpreting launches without a GPU.
LIMIT = 60.0
#: The skipped check of a run without a reference.
_UNCHECKED = Skipped("check", "no reference was given, so the results were not compared with one")


class Capture:
    """Records the launches made while it is active: ``with tilescope.capture() as c: model(x)``.

    On a GPU launches run as usual; configs of an autotuner are compiled in parallel first. Without a GPU, launches are
    interpreted on the CPU's tensors and compiled for ``target``. Interpreting takes at most ``limit`` seconds of work in
    all (0: none), and a fifth of it for each launch. ``not_finite`` names the first NaN or infinity that a launch stores. Raises ValueError, in one line, for an unknown target.
    """

    def __init__(self, target: str = "", limit: float = LIMIT, *, not_finite: bool = False) -> None:
        self._not_finite = not_finite
        self.target, self._here = choose_target(target)
        self.limit = limit
        self._stack = contextlib.ExitStack()
        self._recorder: Recorder | None = None
        self._assumed: Any = None
        self._anew: list[str] = []
        #: The folder that ``job`` wrote the records to.
        self.written = Path()
        #: The result of comparing with a reference, in one line; empty without a reference.
        self.checked = ""

    def __enter__(self) -> Capture:
        if self._recorder is not None:
            raise ValueError("a capture is used once: make another")
        if warm.MARK not in os.environ:
            warm.prepare()  # the profile will need a worker, whose imports can begin now
        from tilescope.captures import processes, recorder, recording  # noqa: PLC0415 (they import torch and triton)
        from tilescope.tuning import autotuning  # noqa: PLC0415

        self._recorder = recorder.Recorder()
        self._anew = self._stack.enter_context(processes.started_anew())
        import torch  # noqa: PLC0415

        # Launches run on this GPU even if they are compiled for another target.
        on_this = bool(self._here) and torch.cuda.is_available()
        if on_this:
            self._stack.enter_context(recording.on_gpu(self._recorder, autotuning.compile_ahead))
        else:
            telling = live_progress.Telling("interpreted what was launched")
            self._stack.callback(telling.close)
            without = recording.without_gpu(
                self._recorder, self.target, self.limit, telling, not_finite=self._not_finite
            )
            self._assumed = self._stack.enter_context(without)
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @property
    def records(self) -> list[Any]:
        """The distinct launches (``tilescope.captures.recorder.Record``)."""
        return self._recorder.records if self._recorder else []

    @property
    def calls(self) -> int:
        """The number of launches."""
        return self._recorder.calls if self._recorder else 0

    @property
    def unmade(self) -> str:
        """The name of the first launch that was not made, after which values are wrong; empty where all were."""
        return self._recorder.unmade if self._recorder else ""

    @property
    def why_unmade(self) -> str:
        """Why that launch was not made, in one line."""
        return self._recorder.why_unmade if self._recorder else ""

    @property
    def launches(self) -> pd.DataFrame:
        """A row a distinct launch: ``kernel``, ``grid``, ``calls``, ``site`` (file:line), ``options``, ``config``, ``notes``."""
        import pandas as pd  # noqa: PLC0415

        rows = [
            {
                "kernel": kernel.name,
                "grid": tuple(record.data["grid"]),
                "calls": record.calls,
                "site": next(iter(record.sites), ""),
                "options": dict(record.data["options"]),
                "config": dict(record.data["config"]),
                "notes": "; ".join(record.data["notes"]),
            }
            for kernel in (self._recorder.kernels if self._recorder else ())
            for record in kernel.records
        ]
        return pd.DataFrame(rows, columns=["kernel", "grid", "calls", "site", "options", "config", "notes"])

    @property
    def notes(self) -> list[str]:
        """Lines on launches that were not recorded or not made, with the reasons."""
        if self._recorder is None:
            return []
        said = [
            f"not recorded, {count} of {self.calls} launches: {why}" for why, count in self._recorder.refused.items()
        ]
        if count := self._recorder.elsewhere:
            said.append(
                f"not recorded, launches of processes that were forked ({count}): capture in the process that launches"
            )
        if self._anew:
            many = "processes" if len(self._anew) > 1 else "process"
            said.append(f"not captured, {len(self._anew)} new {many}: capture in the process that launches")
        if self._assumed and (untimed := self._assumed.answers.untimed):
            said.append(f"no GPU is here, so nothing was timed: {', '.join(untimed)} returned NaN")
        if self._assumed and self._assumed.answers.replayed:
            said.append("no GPU is here, so CUDA graphs launch once, when they are captured: replays change no values")
        if self._assumed and self._assumed.asked_to_compile and self.records:
            said.append(
                "no GPU is here, so functions of torch.compile ran uncompiled: kernels that it would make are missing"
            )
        seen: dict[str, None] = {}
        for kernel in self._recorder.kernels:
            for record in kernel.records:
                seen |= dict.fromkeys(f"{kernel.name}: {note}" for note in record.data["notes"])
        return [*said, *seen]

    @property
    def unassumed(self) -> str:
        """Reasons, related to the absent GPU, why nothing may have been captured; empty where there are none."""
        if self._assumed is None:
            return ""
        said = []
        if self._assumed.uncompiled and self._assumed.asked_to_compile:
            said.append("functions of torch.compile become Triton kernels on a GPU only, and none is here")
        # Only copies inside libraries count: PyTorch itself imports ``pynvml`` wherever it is installed.
        if any(name.endswith(".pynvml") for name in sys.modules):
            said.append("the GPU is assumed for PyTorch and Triton, and NVML, which was imported, finds none")
        return "".join(f"; {one}" for one in said)

    def write(self, folder: Path | str) -> list[str]:
        """Writes the records below ``folder`` and returns each kernel's reference, as ``tilescope profile`` takes it.

        Raises ValueError where no launch was recorded.
        """
        if self._recorder is None or not self.records:
            why = next(iter(self.notes), "no Triton kernel was launched: launch one in the code that is captured")
            raise ValueError(f"nothing was captured: {why}{self.unassumed}")
        return self._recorder.write(Path(folder))

    def profile(
        self,
        collectors: Sequence[str] = (AUTO,),
        *,
        title: str = "",
        runs_dir: Path | str | None = None,
        on_event: OnEvent | None = None,
        **settings: Any,
    ) -> Profile:
        """Profiles every record and returns the finished run. The arguments are those of ``tilescope.profile``."""
        job = self.job(collectors, title=title, runs_dir=runs_dir, settings=settings)
        shown = on_event or live_progress.progress()
        folder = live_progress.wait_for(lambda on_event: supervisor.run(job, on_event), shown)
        keep(self.written, folder)
        return Profile.of(store.open_run(folder))

    def job(
        self,
        collectors: Sequence[str] = (AUTO,),
        *,
        title: str = "",
        runs_dir: Path | str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Job:
        """Writes the records; returns the job that profiles each of them."""
        from tilescope.execution import describe  # noqa: PLC0415 (it imports torch and the kernels)

        folder = (Path(runs_dir) if runs_dir else store.runs_dir()).absolute()
        store.check_writable(folder)
        chosen = choose_collectors(collectors, self.target, self._here)
        self.written = folder / CAPTURED / store.new_id()
        references = self.write(self.written)
        catalog = describe.catalog(references)
        told = {"assumed": {"capture": self._assumed.as_data()}} if self._assumed else {}
        # Launches that the interpreter counted during the capture.
        given = [
            Given("interpreter", Case(reference, "triton", "forward", workload["id"]), artefact)
            for reference, entry in zip(references, catalog, strict=True)
            for number, workload in enumerate(entry["workloads"])
            if (artefact := Path(reference.rpartition(":")[0]).with_name(COUNTED_FILE.format(number))).is_file()
        ]
        checking = self.checked or "check" in collectors
        if not checking:
            chosen = tuple(name for name in chosen if name != "check")
        skipped = [] if checking else [_UNCHECKED]
        check = [self.checked] if self.checked else [f"{one.collector} skipped: {one.message}" for one in skipped]
        floors = [
            f"{kernel.name}: its floor is the bytes of whole tensors, because its accesses were not counted"
            for kernel in (self._recorder.kernels if self._recorder and "interpreter" not in chosen else ())
            if any("counted" not in record.data and record.data.get("touched") for record in kernel.records)
        ]
        cases = [
            Case(entry["kernel"], name, direction, workload["id"])
            for entry in catalog
            for workload in entry["workloads"]
            for direction in entry["passes"]
            for name in entry["implementations"]
        ]
        warned = self._recorder.respecialized() if self._recorder else ()
        return Job(
            cases=cases,
            warnings=[
                Failure(next(case.id for case in cases if case.name == kernel), "compiler", text)
                for kernel, text in warned
            ],
            collectors=chosen,
            settings={**shortened(collectors, chosen), **(settings or {}), **told, "target": self.target},
            runs_dir=folder,
            title=title,
            catalog=catalog,
            given=given,
            notes=[*self.notes, *floors, *check],
            skipped=skipped,
        )

    def __repr__(self) -> str:
        kernels = len({record.function.__name__ for record in self.records})
        return f"<captured {several(self.calls, 'launch', 'launches')}: {len(self.records)} distinct, of {several(kernels, 'kernel')}>"


def keep(written: Path, folder: Path) -> None:
    """Copies the records in the folder ``written`` into the run's ``folder``, so that the run can be passed on with them."""
    shutil.copytree(written, folder / CAPTURED, copy_function=_linked, dirs_exist_ok=True)


def _linked(source: str, target: str) -> None:
    """Links the file to a second name, or copies it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def capture(target: str = "", limit: float = LIMIT) -> Capture:
    """Records the Triton launches that are made in a ``with`` block. See ``Capture``."""
    return Capture(target, limit)
