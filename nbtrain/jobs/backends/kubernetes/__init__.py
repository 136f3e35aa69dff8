"""Kubernetes backend: a job is one object of an operator's kind, whose pods run the node agent."""
