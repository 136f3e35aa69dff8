"""Fixtures for a browser with JupyterLab, from jupyterlab.py."""

from tests.end_to_end.jupyterlab import browser, lab, page, plain_lab  # noqa: F401
