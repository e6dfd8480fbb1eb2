"""``python -m tilescope.jobs.worker JOB.json`` runs a job's cases."""

import sys

from tilescope.jobs.worker.main import main

sys.exit(main(sys.argv[1:]))
