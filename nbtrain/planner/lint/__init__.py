"""Rules that produce findings: unnecessary costs of a run that could be launched."""
