"""The server: its address, its login, and what it refuses."""
