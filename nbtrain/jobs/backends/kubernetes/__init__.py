"""Kubernetes as a backend: one object of an operator's kind, whose pods run the node agent."""
