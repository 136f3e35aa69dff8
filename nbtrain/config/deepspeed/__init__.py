"""DeepSpeed's configuration of a run, and the keys that DeepSpeed knows."""
