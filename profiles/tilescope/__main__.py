"""``python -m tilescope`` is the command ``tilescope``."""

import sys

from tilescope.cli import main

sys.exit(main())
