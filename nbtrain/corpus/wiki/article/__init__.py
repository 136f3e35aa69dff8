"""Wikitext -> text: walker.py reads an article, gaps.py drops sentences whose text is unknown."""
