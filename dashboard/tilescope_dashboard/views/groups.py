"""The app's views, in the groups and the order in which their tabs stand."""

from __future__ import annotations

from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.autotune import Autotune
from tilescope_dashboard.views.claims import Claims
from tilescope_dashboard.views.compare import Compare
from tilescope_dashboard.views.counters import Counters
from tilescope_dashboard.views.fusing import Fusing
from tilescope_dashboard.views.history import History
from tilescope_dashboard.views.home import Home
from tilescope_dashboard.views.inside import Inside
from tilescope_dashboard.views.model import Model
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.sizes import Sizes
from tilescope_dashboard.views.source import Source
from tilescope_dashboard.views.summary import Summary
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic
from tilescope_dashboard.views.watch import Watch

#: Groups of views, by their titles. A view is one class and its name here: first those of all kernels, then those of one.
GROUPS = {
    "Library": (Home, Claims, Overview, Model),
    "Summary": (Summary,), "Why": (Advice, Roofline, Traffic, Counters, Occupancy, Fusing), "Source": (Source,), "Tune": (Autotune,),
    "Time": (Timeline, Inside), "Sizes": (Sizes,), "Compare": (Compare,), "History": (History,), "Watch": (Watch,),
}  # fmt: skip
#: Titles of all views with their groups': "Why: Roofline", "Tune".
TITLES = {
    view.name_in_address: f"{group}: {view.title}" if len(views) > 1 else group
    for group, views in GROUPS.items()
    for view in views
}
#: Former view names in addresses, and the state that each means today.
FORMER = {"gpu": {"view": "summary", "panel": "gpu"}}
#: The group of views of all kernels.
APART = "Library"
