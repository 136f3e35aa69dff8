"""Readers of text: one small streaming reader for each kind of source, imported when it is used."""
