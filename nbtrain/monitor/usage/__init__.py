"""Resources that a job uses: now, from /proc, and over time, from the files of its nodes."""
