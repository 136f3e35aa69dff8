"""The launch form: its fields, checks of a draft, and responses to its requests."""
