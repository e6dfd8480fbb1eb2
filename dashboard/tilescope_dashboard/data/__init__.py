"""What the views show, as frames: runs, the kernel library, telemetry, and what an address names."""
