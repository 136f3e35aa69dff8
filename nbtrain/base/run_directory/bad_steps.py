"""Effects of the policies for bad steps, in words: of stability.on_nan and stability.on_loss_spike."""

EFFECTS = {
    "stop": "the job ends",
    "skip": "the weights stay unchanged and the step's samples are skipped",
    "rollback": "the job returns to the newest checkpoint and skips the samples from there to the bad step",
}
"""{policy: effect on a bad step}; the policy ignore has none."""
