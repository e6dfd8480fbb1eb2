"""State of one visitor's session, its scheduling, and the server's jobs and telemetry as it follows them."""
