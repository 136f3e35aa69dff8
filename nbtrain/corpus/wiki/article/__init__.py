"""Wikitext -> text: walker.py reads an article, gaps.py drops sentences of which a part is unknown."""
