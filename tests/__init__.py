"""A package, so that no other folder called `tests` on the path comes before this one."""
