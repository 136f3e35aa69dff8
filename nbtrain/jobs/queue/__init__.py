"""The queue of one machine: which job has which GPUs and cores, and which waits for them."""
