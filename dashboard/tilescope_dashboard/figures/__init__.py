"""Figures: pure functions from a frame to a Bokeh figure. The only plotting code; no Panel, no state."""
