"""The form in the drawer that starts a profile."""
