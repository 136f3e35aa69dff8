"""Estimates made before a run starts: memory by part, time, and disk. They are computed with arithmetic,
without torch.
"""
