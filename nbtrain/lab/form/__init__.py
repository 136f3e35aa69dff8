"""The launch form: its fields, the check of a draft, and the answers to its requests."""
