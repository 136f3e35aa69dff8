"""Effects of the policies for bad steps that stability.on_nan and stability.on_loss_spike select."""

EFFECTS = {
    "stop": "the job ends",
    "skip": "the weights stay unchanged and the step's samples are skipped",
    "rollback": "the job returns to the newest checkpoint and skips the samples from there to the bad step",
}
"""{policy: its effect on a bad step}. The policy ignore has no effect."""
