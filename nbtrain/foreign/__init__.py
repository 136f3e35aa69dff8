"""Files of other programs: reading, checking, conversion to run YAMLs, and export."""
