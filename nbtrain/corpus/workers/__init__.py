"""Worker processes for data: on this machine, or on a Dask cluster."""
