"""What JupyterLab shows: widgets and the server extension."""
