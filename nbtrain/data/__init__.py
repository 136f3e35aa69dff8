"""From text to a verified token dataset and its GPT samples; NumPy only."""
