"""Makes `tests` a package, so that no other folder called `tests` on the import path is used instead."""
