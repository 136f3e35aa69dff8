"""The JupyterLab interface: widgets, the launch form and the server extension."""
