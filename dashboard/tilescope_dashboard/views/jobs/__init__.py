"""Jobs as one session sees them."""
