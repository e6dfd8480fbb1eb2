"""``python -m tilescope.worker JOB.json`` runs a job's cases."""

import sys

from tilescope.worker.main import main

sys.exit(main(sys.argv[1:]))
