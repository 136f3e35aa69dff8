"""Picture of a reproduction: the losses of the run and of the reproduction, and their differences.

matplotlib is imported when the figure is created.
"""

from typing import TYPE_CHECKING, Any

from nbtrain.base.printing.theme import BLUE, ORANGE, RED, themed
from nbtrain.monitor.run.pictures import shown_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(reproduction: dict[str, Any]) -> "Figure":
    """Draw the result of Reproduction.to_dict().

    The left plot shows the losses by step, the right plot the absolute differences of loss and gradient norm.
    """
    curves, run = reproduction["curves"], reproduction["run"]
    figure = shown_figure(f"{run}: {reproduction['headline']}", 4.0)
    losses, differences = figure.subplots(1, 2)
    losses.plot(curves["step"], curves["loss_before"], color=BLUE, linewidth=2.5, alpha=0.6, label=run)
    losses.plot(curves["step"], curves["loss"], "--", color=ORANGE, label="trained again")
    losses.set(title="Loss", xlabel="step", ylabel="nats per token")
    for name, color in (("loss", BLUE), ("grad_norm", ORANGE)):
        far = [
            float("nan") if before is None or now is None else abs(now - before)
            for before, now in zip(curves[f"{name}_before"], curves[name])
        ]
        label = name.replace("grad_norm", "gradient norm")
        differences.plot(curves["step"], far, ".-", color=color, label=label)
    if (step := reproduction["first_different_step"]) is not None:
        differences.axvline(step, color=RED, linewidth=0.8, label=f"step {step:,}: first difference")
        # On this scale, differences of the last bits and of whole nats are both visible.
        differences.set_yscale("symlog", linthresh=1e-9)
    else:
        differences.set_ylim(-1, 1)
    differences.set(title="Difference of each step", xlabel="step")
    for axes in (losses, differences):
        axes.legend(fontsize=8)
    return themed(figure)
