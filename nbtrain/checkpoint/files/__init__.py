"""Files of a checkpoint: their formats, hashes and manifest, and the disks that they are on."""
