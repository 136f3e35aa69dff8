"""The rules that make findings: what a run that may be launched would cost more than it needs."""
