"""The launch form: its fields, what is said of a draft, and the answers that every host of it asks for."""
