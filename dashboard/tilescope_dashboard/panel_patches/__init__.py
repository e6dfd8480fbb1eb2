"""Patches of Panel and Bokeh, each for the version that ``FOR`` names.

``tests/dashboard/test_panel_patches.py`` shows each fault without its patch. It fails when upstream mends one; then delete the
module. ``page_lifetime.settle`` installs the patches that pages need, ``serving.guard`` those of the server.
"""

#: Module to the distribution and version that it patches.
FOR = {
    "callback_checks": ("bokeh", "3.9.2"), "component_files": ("panel", "1.9.4"), "connections": ("panel", "1.9.4"),
    "gone": ("panel", "1.9.4"), "grown_pages": ("bokeh", "3.9.2"), "model_defaults": ("bokeh", "3.9.2"),
    "page_address": ("panel", "1.9.4"), "page_lifetime": ("panel", "1.9.4"), "page_resources": ("panel", "1.9.4"),
}  # fmt: skip
