"""How a script of checks runs: those that its arguments name, or all."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any


def main(namespace: Mapping[str, Any]) -> None:
    """Runs checks of a module and prints what went wrong, by name: nothing, or the end of the traceback."""
    results = {}
    for name in sys.argv[1:] or [name for name in namespace if name.startswith("check_")]:
        began = time.process_time()
        try:
            namespace[name]()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc(limit=-4)
        print(f"{time.process_time() - began:7.2f} s  {name}", file=sys.stderr)
    print(json.dumps(results))
