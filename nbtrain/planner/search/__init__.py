"""Search of layouts: legal ones, the best, the cost of one change, and the largest model that fits."""
