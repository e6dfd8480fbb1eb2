"""The app's views in a notebook's output."""
