"""What the table means: summary, roofline, traffic, timeline, comparisons, claims. Imports no torch and captures nothing."""
