"""One manifest for each kind of object, with only the fields that the kind has."""
