"""Arithmetic for the notebook side and the GPU side: parameters, FLOPs, stages, batches, schedules."""
