"""`nbtrain twin` and `nbtrain reproduce`: proofs that a run's layout and its recorded steps are correct."""
