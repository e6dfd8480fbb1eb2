"""Normalisations of rows, with residuals and linear layers."""
