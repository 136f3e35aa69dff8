"""One manifest for each kind of object, written strictly: no field that the kind does not have."""
