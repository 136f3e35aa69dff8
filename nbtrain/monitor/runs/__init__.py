"""Many runs: their list with filter and columns, and their comparison."""
