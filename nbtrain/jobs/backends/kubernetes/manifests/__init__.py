"""One manifest for each kind of object. Each contains only fields that the kind has."""
