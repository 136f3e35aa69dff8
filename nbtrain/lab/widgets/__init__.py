"""Notebook widgets: the launch form, the live panel, TensorBoard and others."""
