"""Files of other programs: read, checked, turned into run YAMLs, and written."""
