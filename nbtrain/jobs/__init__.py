"""Submit, supervise and stop runs."""
