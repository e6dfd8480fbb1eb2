"""2-D convolutions: dense, grouped and depthwise."""
