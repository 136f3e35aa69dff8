"""Sphinx configuration of the site that `make site` builds (tests/site.py gathers its sources).

A page loads nothing from another address: no font, no script, no mathematics from a CDN. The search index is
a script of the site, so that a search works from file:// too.
"""

project = "nbtrain"
extensions = ["myst_parser"]
root_doc = "README"
language = "en"

myst_heading_anchors = 6
pygments_style = "default"
pygments_dark_style = "monokai"

html_theme = "furo"
html_title = "nbtrain"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
# A summary would be fetched from the page that was found, which browsers refuse for file://.
html_show_search_summary = False
