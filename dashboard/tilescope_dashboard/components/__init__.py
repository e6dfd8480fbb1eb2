"""Pieces of the page that several views use."""
