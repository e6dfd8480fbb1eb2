"""``python -m tilescope.jobs.worker JOB.json`` runs a job's cases."""

import os
import sys

from tilescope.jobs.worker.main import main

status = main(sys.argv[1:])
sys.stdout.flush()
sys.stderr.flush()
# What torch and the driver would put away goes with the process: under ncu that took most of a second.
os._exit(status)
