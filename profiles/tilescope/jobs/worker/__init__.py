"""The worker: the only process that launches kernels."""
