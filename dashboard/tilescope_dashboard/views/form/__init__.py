"""The form in the sidebar that starts a profile."""
