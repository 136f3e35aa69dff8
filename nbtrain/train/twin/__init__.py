"""The GPU side of `nbtrain twin`."""
