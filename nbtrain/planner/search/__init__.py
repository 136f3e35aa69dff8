"""Layout search: legal layouts, the best ones, the cost of each change, and the largest model that fits."""
