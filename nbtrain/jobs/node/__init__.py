"""Node agents, one per machine or pod, which start the ranks there, measure them, and report how they end."""
