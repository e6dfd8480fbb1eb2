"""GPUs: detection, roofs, occupancy, and the lock that one job holds."""
