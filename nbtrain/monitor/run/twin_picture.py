"""Picture of a twin's report: the loss curves of its runs, and their differences from one process.

matplotlib is imported when the figure is created.
"""

from typing import TYPE_CHECKING, Any

from nbtrain.base.printing.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, themed
from nbtrain.monitor.run.pictures import shown_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# {name in the report: (label, color, line style)}, in drawing order. The styles differ because curves may
# coincide.
CURVES = {
    "reference": ("one process, fp32", GREY, "-"),
    "exact": ("all ranks, fp32", BLUE, "--"),
    "rounded": ("the run's number format", ORANGE, "-."),
    "reshaped": ("resumed in one process", PURPLE, ":"),
    "straight": ("the twin itself", GREEN, "-"),
    "resumed": ("stopped and resumed", RED, ":"),
}
# Represents "no difference" on the logarithmic axis; smaller than any difference between two fp32 losses.
NO_DIFFERENCE = 1e-8


def draw(report: dict[str, Any]) -> "Figure":
    """Draw a TwinReport.to_dict(): losses by step, and their differences from one fp32 process."""
    verdict = "passed" if report["passed"] else "FAILED"
    title = f"Twin of {report['run']}: {verdict} ({report['layout']}, {report['number_format']})"
    figure = shown_figure(title, 4.0)
    losses, differences = figure.subplots(1, 2)
    reference = report["curves"].get("reference", {"step": [], "loss": []})
    expected = dict(zip(reference["step"], reference["loss"]))
    for name, (words, colour, line) in CURVES.items():
        curve = report["curves"].get(name)
        if not curve or not curve["step"]:
            continue
        losses.plot(curve["step"], curve["loss"], line, color=colour, label=words)
        both = [(at, loss) for at, loss in zip(curve["step"], curve["loss"]) if at in expected]
        # The twin's own run may use dropout, so its difference from the reference means nothing.
        if name in ("exact", "rounded", "reshaped") and both:
            far = [max(abs(loss - expected[at]), NO_DIFFERENCE) for at, loss in both]
            style = {"marker": "o", "markersize": 3, "color": colour, "label": words}
            differences.plot([at for at, _ in both], far, line, **style)
    losses.set(title="Loss", xlabel="step", ylabel="nats per token")
    differences.set(title="Difference from one process", xlabel="step", yscale="log")
    for check in report["checks"]:
        tolerance = check["values"].get("loss_tolerance")
        if check["name"] in ("layout", "precision") and tolerance:
            colour = CURVES["exact" if check["name"] == "layout" else "rounded"][1]
            differences.axhline(tolerance, color=colour, linewidth=0.8, alpha=0.6)
    for axes in (losses, differences):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    return themed(figure)
