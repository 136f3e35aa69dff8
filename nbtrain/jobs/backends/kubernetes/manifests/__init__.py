"""Manifests for each kind of object. A manifest contains only fields that its kind has."""
