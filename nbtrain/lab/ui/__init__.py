"""The user interface: ES modules for the browser, the same in JupyterLab's panels and in notebooks."""
