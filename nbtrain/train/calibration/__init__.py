"""Measures the speed of this machine: matrix products, the model's blocks, collectives, and DeepSpeed's own
steps.
"""
