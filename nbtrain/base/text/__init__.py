"""Text for people: numbers, tables, terminal width, sort order of names, addresses without secrets."""
