"""Views of a dataset: card, inspection, verification, browser."""
