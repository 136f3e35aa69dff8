"""Wikipedia dumps: download.py fetches, dump.py reads pages, walker.py turns wikitext into text."""
