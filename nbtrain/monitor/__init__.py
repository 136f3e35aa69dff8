"""Read a run from its directory: state, progress, events, scalars."""
