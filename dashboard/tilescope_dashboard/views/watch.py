"""Watch: the versions of a script as it is edited, the one before beside the one now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.models.versions import Case, Pair
from tilescope.notebook.watching import Version
from tilescope.notebook.watching import Watch as Script

from tilescope_dashboard.components import html_text, layout, version_panels
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.copy_button import CopyButton
from tilescope_dashboard.data import best_run
from tilescope_dashboard.data.launched_code import launched
from tilescope_dashboard.data.recordings import best
from tilescope_dashboard.session import access, watching
from tilescope_dashboard.session.jobs import Follower
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import versions as topic
from tilescope_dashboard.views.base import View

#: A version is two lines. The strip scrolls sideways, newest first.
_BUTTON = {
    "whiteSpace": "pre", "flex": "none", "width": "auto", "minWidth": 84, "textTransform": "none", "lineHeight": 1.35, "fontSize": 12,
    "padding": "4px 12px", "fontVariantNumeric": "tabular-nums", "textAlign": "left", "justifyContent": "flex-start",
    "color": "text.primary", "fontWeight": 400,
    "&::first-line": {"fontWeight": 700},
    "&.Mui-selected": {"boxShadow": "inset 0 0 0 2px", "boxShadowColor": "primary.main", "backgroundColor": "action.selected"},
}  # fmt: skip
_STRIP_CSS = """:host { flex: 1 1 320px; min-width: 0; overflow-x: auto; scrollbar-width: thin; }
#toggle-buttons-group-label { display: none; }"""

#: Most files that are listed below the field, which offers all. Their rows are as wide as the field.
_OFFERED = 6
_FILES = {"& .MuiListItemButton-root": {"borderBottom": "1px solid", "borderColor": "divider", "padding": "2px 12px"},
          "& .MuiListItemText-root": {"margin": "2px 0"}, "padding": 0}  # fmt: skip


class Watch(View):
    """The address holds the version, the one it is compared with, and the launch. Without them they are the newest version, the pinned
    or the last good one before it, and the first launch.
    """

    name_in_address, title = "watch", "Watch"
    live = True

    def __init__(self, state: State) -> None:
        self.watching = watching.shared()
        super().__init__(state)
        # The versions stand above the headline.
        self.layout.insert(0, self.strip)
        Follower(self.watching.watch, self._renew)
        state.param.watch(self._renew, ["version", "against", "launch"])

    def build(self) -> list[Any]:
        self._version = pmui.RadioButtonGroup(
            label="version", options={}, size="small", variant="outlined", margin=(4, 8), stylesheets=[_STRIP_CSS]
        )
        self._version.param.watch(self._choose, "value")
        self._filling = False
        beside: dict[str, Any] = {"margin": (2, 4, 2, 8)}
        self._launch = Choice("launch", 220, lambda: self._set(launch=self._launch.value), **beside)
        self._other = Choice("paired with", 220, self._pair_by_hand, **beside)
        self._name = pmui.TextInput(label="name", width=120, size="small", **beside)
        self._name.param.watch(self._rename, "value")
        self._pin, self._delete, self._open = (
            pmui.Button(label=label, variant="text", size="small", margin=(8, 0)) for label in ("Pin", "Delete", "Open its run")
        )  # fmt: skip
        self._pin.on_click(lambda _: next_tick(self._pin_or_not))
        self._delete.on_click(lambda _: next_tick(self._remove))
        self._open.on_click(lambda _: next_tick(self._open_run))
        self._link = CopyButton()
        self._file = pmui.AutocompleteInput(
            label="script", options=[], restrict=False, min_characters=0, search_strategy="includes", size="small", width=290,
            margin=(8, 4, 8, 8),
        )  # fmt: skip
        self._files = pmui.MenuList(items=[], dense=True, highlight=False, max_width=460, margin=(0, 8), sx=_FILES)
        self._files.on_click(lambda item: next_tick(lambda: self._begin(item["label"])))
        self._start = pmui.Button(label="Watch", margin=(8, 4))
        self._start.on_click(lambda _: next_tick(lambda: self._begin(self._file.value or "")))
        self._stop = pmui.Button(label="Stop", variant="text", size="small", margin=(8, 0))
        self._stop.on_click(lambda _: next_tick(self.watching.stop))
        self._refused, self._folder, self._example = html_text.pane(), html_text.pane(), html_text.pane()
        self._field = layout.beside(self._file, self._start)
        self._picker = layout.column(
            self._field, self._refused, self._folder, self._files, styles={"flex": "0 1 400px"}
        )
        parts = (self._launch, self._other, self._name, self._pin, self._delete, self._open, self._stop, self._link)
        beside = {"align-items": "center", "padding-top": "6px", "max-width": "100%"}
        actions = layout.flow(*parts, styles=beside, sizing_mode=None)
        self.strip = layout.flow(self._version, actions, styles={"align-items": "center"})
        self.values, self.panels = html_text.pane("", version_panels.CSS), html_text.pane("", version_panels.CSS)
        self.shown_versions = layout.column(
            self._example, self.values, self.panels, styles={"flex": "1 1 640px", "min-width": "0"}
        )
        return [layout.flow(self._picker, self.shown_versions)]

    def update(self) -> None:
        versions = self._versions
        self.strip.visible, self._example.visible = bool(versions), not versions
        self._picker.visible = not self.watching.on and self.state.may_launch
        if self._picker.visible:
            self._offer_scripts()
        if not versions:
            self.say(topic.NOTHING)
            self._show_example()
            return
        self._now = self._numbered(self.state.version) or versions[-1]
        self._compared = self._script.compared(self._now, self._numbered(self.state.against))
        # A version that runs or failed may lack launches: the last good one's stay.
        self._pairs = [pair for pair in self._compared.pairs if pair.candidate or self._now.state != "ready"]
        place = int(self.state.launch) if self.state.launch.isdecimal() else 0
        self._place = min(place, max(0, len(self._pairs) - 1))
        self._offer()
        self._show()

    @property
    def _script(self) -> Script:
        """What is watched. Raises ValueError where nothing is."""
        if self.watching.script is None:
            raise ValueError("no script is watched")
        return self.watching.script

    def _usual(self) -> float | None:
        """Seconds that the script's last run took; None where it has none."""
        name = self._script.script.name
        last = next((run for run in self.state.runs if not run.recorded and Path(run.title).name == name), None)
        return best_run.took(last) if last else None

    @property
    def _versions(self) -> list[Version]:
        return self.watching.script.versions if self.watching.script else []

    @property
    def _pair(self) -> Pair | None:
        return self._pairs[self._place] if self._pairs else None

    def _numbered(self, number: str) -> Version | None:
        return next((version for version in self._versions if str(version.number) == number), None)

    def _show(self) -> None:
        """Draw the versions that are compared."""
        chosen, other, pair = self._now, self._compared.baseline, self._pair
        notices = [
            html_text.notice("warning", "Timed under other conditions:", said) for said in self._compared.conditions
        ]
        if chosen.doubt:
            missing = f"Not all programs of {chosen.unmade} ran, so what the script says of its results is void:"
            notices.append(html_text.notice("warning", missing, chosen.doubt))
        if self.watching.error:
            notices.append(html_text.notice("error", "No longer watched:", self.watching.error))
        self.say(topic.sentence(chosen, other, pair, self._usual()), html_text.notices(notices))
        if pair and chosen.state == "failed":
            # Nothing is concluded about a wrong version: the values and findings of the last good one stay.
            pair = Pair(pair.baseline, None)
        before = topic.short(other) if other else ""
        old = {"running": "waiting", "failed": f"of {before}"}.get(chosen.state, "")
        bad = filter(None, [*chosen.wrong, chosen.doubt])
        marks = {topic.place(said, self._script.script.name): said.partition(". ")[0] for said in bad}
        files = topic.source(watching.texts(other) if other else {}, watching.texts(chosen, self._script.files), marks)
        title = f"{before} → {topic.short(chosen)}" if other else topic.short(chosen)
        follows = f"watching {', '.join(sorted(file.name for file in self._script.files))}" if self.watching.on else ""
        self._draw(pair, files, (title, follows), old)
        if not (chosen.unmade and chosen.doing):
            self.panels.object += version_panels.printed(chosen.output)

    def _draw(
        self, pair: Pair | None, files: Mapping[str, Sequence[topic.SourceLine]], head: tuple[str, str], old: str = ""
    ) -> None:
        """Draw a pair's values, ``old`` ones as such; the lines of its source, below a title and an aside; and its findings."""
        dark, sides = self.state.theme == "dark", [pair.baseline, pair.candidate] if pair else []
        self.values.object = version_panels.values(topic.values(pair, old) if pair else [], dark)
        findings = [side.findings if side else () for side in sides]
        # A version that failed, or has no values yet, has no findings. Those of the last good one stay.
        good = "" if pair and pair.candidate else head[0].partition(" → ")[0]
        self.panels.object = version_panels.panels(files, head, findings[:1] if good else findings, dark, good)

    def _show_example(self) -> None:
        """Show what a page of versions tells, by a recorded study."""
        found = best(self.state.runs, topic.STUDY, topic.QUESTION)
        pair = topic.example(found.loaded, topic.STUDY) if found else None
        self.shown_versions.visible = self._example.visible = pair is not None
        if found is None or pair is None:
            return
        said = topic.sentence(Version(2, state="ready"), Version(1), pair)
        self._example.object = html_text.subheading(topic.EXAMPLE, f"{said.title}. From {found.origin}.")
        before, after = (launched(found.loaded, topic.STUDY, case) for case in topic.STUDIED)
        self._draw(pair, topic.source(before, after, {}), ("v1 → v2", ""))

    def _offer(self) -> None:
        """Fill the widgets."""
        script, chosen, other, pair = self._script, self._now, self._compared.baseline, self._pair
        newest_first = script.versions[::-1]
        self._filling = True
        labels = [
            f"{topic.short(version)}{' ★' if version is script.pinned else ''}\n{topic.badge(script.compared(version))}"
            for version in newest_first
        ]
        bad = {
            f"& button:nth-of-type({place})": {"color": "error.main"}
            for place, version in enumerate(newest_first, 1)
            if version.state == "failed"
        }
        options = dict(zip(labels, (version.number for version in newest_first), strict=True))
        self._version.param.update(options=options, value=chosen.number, sx={"& .MuiToggleButton-root": _BUTTON, **bad})
        self._version.param.trigger("value")  # the browser keeps the label, which may have changed
        self._name.param.update(value=chosen.name, label=f"name of v{chosen.number}")
        self._pin.label = f"Unpin v{script.pinned.number}" if script.pinned else "Pin as baseline"
        able = self.state.may_launch
        self._name.disabled = self._other.disabled = not able
        self._pin.disabled = not able or (not script.pinned and chosen.state != "ready")
        self._delete.disabled = not able or len(script.versions) < 2 or chosen.state == "running"
        self._stop.visible = able and self.watching.on
        self._open.disabled = chosen.run is None
        sides = [pair.candidate or pair.baseline for pair in self._pairs]
        self._launch.offer(_labelled([side for side in sides if side]), str(self._place), anew=True)
        self._launch.visible = len(self._pairs) > 1
        cases = other.cases if other else ()
        at = next((str(at) for at, case in enumerate(cases) if pair and case is pair.baseline), "")
        self._other.label = f"paired by {pair.how} with" if pair and pair.how else "paired with"
        self._other.offer({"nothing": "", **_labelled(cases)}, at, anew=True)
        self._other.visible = bool(other and pair and pair.candidate and (len(cases) > 1 or pair.how != "name"))
        self._link.offer("Copy link", self._address())
        self._filling = False

    def _address(self) -> str:
        """A link to these versions; empty outside of a page."""
        location, other = pn.state.location, self._compared.baseline
        if not location or not location.href:
            return ""
        asked = {"view": "watch", "version": self._now.number, **({"against": other.number} if other else {})}
        return f"{location.href.partition('?')[0]}?{urlencode(asked)}"

    def _choose(self, event: param.parameterized.Event) -> None:
        if not self._filling and event.new:
            self._set(version="" if event.new == self._versions[-1].number else str(event.new))

    def _offer_scripts(self) -> None:
        """Offer this server's scripts, with the former one's or the open run's chosen."""
        profiled = {Path(run.title).name for run in self.state.runs}
        files, folder = access.own_files(profiled), access.own_folder()
        run, former = self.loaded.run.title if self.loaded else "", self.watching.script
        title = former.script.name if former else Path(run).name
        own = next((file for file in files if Path(file).name == title), "")
        self._file.param.update(options=files, value=self._file.value or own or None)
        offered = files[:_OFFERED] if folder and not former else []
        saved = {file: datetime.fromtimestamp((folder / file).lstat().st_mtime) for file in offered if folder}
        self._files.items = [
            {"label": file, "secondary": topic.of_file(when, Path(file).name in profiled), "icon": None}
            for file, when in saved.items()
        ]
        self._files.visible = bool(offered)
        more = f", the first {_OFFERED} of {len(files)}" if len(files) > _OFFERED else ""
        self._field.visible = folder is not None
        self._folder.object = (
            html_text.paragraph(f"Scripts in {folder}{more}")
            if offered
            else ""
            if files
            else html_text.notice("info", "No scripts:", access.no_own_files() or f"{folder} has no Python file.")
        )
        self._folder.visible = bool(self._folder.object)

    def _begin(self, script: str) -> None:
        try:
            if not script:
                raise ValueError("choose a script, or type its path")
            self.watching.begin(script)
        except ValueError as error:
            self._refused.object = html_text.notice("error", "Not watched:", str(error))
        else:
            self._refused.object = ""
            self.state.param.update(version="", against="", launch="")

    def _set(self, **chosen: str) -> None:
        next_tick(lambda: self.state.param.update(**chosen))

    def _pair_by_hand(self) -> None:
        pair, other, at = self._pair, self._compared.baseline, self._other.value
        if other and pair and pair.candidate:
            self._script.pair(self._now, pair.candidate, other, other.cases[int(at)] if at else None)

    def _rename(self, event: param.parameterized.Event) -> None:
        if not self._filling:
            self._script.name(self._now, event.new[:40])

    def _pin_or_not(self) -> None:
        self._script.pin(None if self._script.pinned else self._now)
        self.state.param.update(version="", against="")

    def _remove(self) -> None:
        self._script.delete(self._now)
        self.state.version = ""

    def _open_run(self) -> None:
        if self._now.run:
            self.state.refresh()
            self.state.go_to(run=self._now.run.name)

    def _renew(self, *_: object) -> None:
        self.fresh = False
        if self.state.view == self.name_in_address:
            self.refresh()


def _labelled(cases: Sequence[Case]) -> dict[str, str]:
    """Places by titles; equal titles are told apart by their places."""
    titles = [case.title for case in cases]
    return {f"{title} · {at + 1}" if titles.count(title) > 1 else title: str(at) for at, title in enumerate(titles)}
