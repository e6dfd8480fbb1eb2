"""``python -m tilescope.jobs.worker JOB.json`` runs a job's cases."""

import os
import sys

from tilescope.jobs.worker.main import main

status = main(sys.argv[1:])
sys.stdout.flush()
sys.stderr.flush()
# Skips the clean-up of torch and the driver, which takes most of a second under ncu.
os._exit(status)
