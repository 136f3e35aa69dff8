"""The JupyterLab side: widgets, the form and the server extension."""
