"""An article as text: walker.py turns its wikitext into paragraphs, gaps.py drops sentences with unknown text."""
