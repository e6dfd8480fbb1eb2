"""Write what a run says as text for a pull request. 'tilescope report' also writes HTML, 'tilescope site' a page a kernel."""

from pathlib import Path

import tilescope
from tilescope.models.compare import Side
from tilescope_dashboard import report

run = next(tilescope.recordings("gelu"))
Path("report.md").write_bytes(report.render([Side(run)], "md", "gelu"))
print(Path("report.md").read_text(encoding="utf-8")[:600])
