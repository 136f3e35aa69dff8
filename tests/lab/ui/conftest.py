"""The browser fixture of tests/end_to_end/jupyterlab.py."""

from tests.end_to_end.jupyterlab import browser  # noqa: F401
