"""Runs, the kernel library, sweeps and telemetry as frames and values; units, columns, files to save, and addresses."""
