"""Headlines: what a view says above its figure. Pure functions from a frame to HTML, in which everything is escaped."""
