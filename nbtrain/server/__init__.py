"""The Jupyter server's half: REST for the panel, the TensorBoard proxy."""
