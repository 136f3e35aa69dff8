"""Actions on a job from any process, from a pause to the deletion of its run."""
