"""What one session looks at, and the work that it starts."""
