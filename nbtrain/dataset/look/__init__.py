"""What is in a dataset: card, inspection, verification, browser."""
