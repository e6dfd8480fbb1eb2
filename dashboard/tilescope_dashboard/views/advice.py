"""Advice: findings on one case of the kernel, and NVIDIA's own."""

from __future__ import annotations

from typing import Any

from tilescope.models.advice import nvidia_rules

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, case_name
from tilescope_dashboard.data.recordings import ANYTHING
from tilescope_dashboard.topics import advice as topic
from tilescope_dashboard.views.base import View


class Advice(View):
    """Findings of the chosen case as cards, NVIDIA's separately."""

    name_in_address, title, question = "advice", "Advice", ANYTHING
    collectors = ("compiler", "interpreter")

    def build(self) -> list[Any]:
        self._case = Choice("case", 620, self._choose, sizing_mode="stretch_width", max_width=620)
        self.ours, self.theirs = html_text.pane("", cards.CSS), html_text.pane("", cards.CSS)
        return [self._case, self.ours, self.theirs]

    def _choose(self) -> None:
        self.state.case = case_name(self._case.value)

    def update(self) -> None:
        loaded, case, kernel = self.state.loaded, self.state.standing, self.state.kernel
        self._case.offer(dict(self.state.cases), case, anew=True)
        # The bar has no configs.
        if not any(known.config for known in self.state.cases.values()):
            self.hide_like_bar(self._case, case)
        self.ours.object = self.theirs.object = ""
        if loaded is None or case is None:
            self.say_nothing(topic.nothing(kernel))
            return
        table = self.state.table
        sources = set(table.loc[(table[OF_KERNEL] == list(case)).all(axis="columns"), "source"])
        ours = run_cache.findings(loaded, (kernel, *case))
        theirs = [one for one in nvidia_rules.of_run(loaded.folder, loaded.run.kernels) if one.case == (kernel, *case)]
        self.say(topic.sentence(ours, sources))
        self.ours.object = cards.cards(ours)
        command = self.state.command("profile", "--collect", "ncu_rules")
        self.theirs.object = html_text.subheading(*topic.nvidia_sentence(theirs, command)) + cards.cards(theirs)
