"""The learning rate of a step: nbtrain.config.lr_schedule, which the planner's picture needs as well."""

from nbtrain.config.lr_schedule import LrSchedule

__all__ = ["LrSchedule"]
