"""Arithmetic that both wings need: parameters, FLOPs, stages, batches, schedules."""
