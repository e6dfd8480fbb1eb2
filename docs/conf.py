"""The documentation site: ``make docs`` builds it, with warnings as errors."""

import sys
from pathlib import Path

from docutils import nodes

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / part) for part in ("kernels", "profiles", "dashboard"))]

import generate  # noqa: E402

generate.write(HERE / "reference")

project = "Tilescope"
author = "Tilescope maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["reference/library.md", "_build", "upstream.md"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
smartquotes = False  # they make one dash of an option's two
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository; tests/test_docs.py checks each

html_theme = "furo"
html_title = "Tilescope"
html_static_path = ["pictures"]
html_copy_source = False
html_show_search_summary = False  # its texts are fetched, which a folder refuses
html_show_sphinx = html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}


def _link_files(app, tree, page):
    """Leads links to files of the repository to the pages that hold them; others become text."""
    for link in list(tree.findall(nodes.reference)):
        target = link.get("refid", "")
        page_of = Path(target).stem.lower()
        if target.endswith(".md") and "/" not in target and page_of in app.env.found_docs:
            del link["refid"]
            link["refuri"] = app.builder.get_relative_uri(page, page_of)
        elif "/" in target or target.endswith(".md"):
            link.replace_self(link.children)


def setup(app):
    app.connect("doctree-resolved", _link_files)
