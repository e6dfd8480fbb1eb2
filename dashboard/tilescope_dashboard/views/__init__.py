"""Views: each a ``pn.viewable.Viewer`` that shows one pure function of the state's table, with a table beside it."""
