"""Wikipedia dumps: download.py fetches, dump.py reads pages, article/walker.py turns wikitext into text."""
