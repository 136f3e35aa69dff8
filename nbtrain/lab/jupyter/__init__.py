"""Settings for Jupyter's programs, as files in the places where they look."""
