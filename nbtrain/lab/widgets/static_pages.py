"""Metrics, Plan and Config in the static picture, with the same content as those tabs of the panel."""

import html
from collections.abc import Mapping
from typing import Any

from nbtrain.base.findings import Finding
from nbtrain.base.printing.report import Facts, Findings, Headline, Report, Table
from nbtrain.lab.widgets.static_charts import charts_in_rows
from nbtrain.monitor.metrics.metric_charts import drawn

# HTML for long parts, which are folded.
FOLDED = '<details><summary style="cursor:pointer">{words}</summary>{content}</details>'


def metrics_html(answer: Mapping[str, Any] | None) -> str:
    """Return every curve of the run by step as HTML; "" without curves."""
    if not answer:
        return ""
    charts = [drawn(one, answer) for one in answer["charts"]]
    return charts_in_rows([(chart, curves, answer["marks"]) for chart, curves in charts if curves])


def plan_html(page: Mapping[str, Any] | None) -> str:
    """Return the plan as HTML: fit, time and disk, findings, and folded tables."""
    if not page:
        return ""
    words = [(name, word, page["kind"] if name == "fits" else "") for name, word in page["headline"].items()]
    findings = Findings([Finding.from_dict(one) for one in page["findings"]], "Findings")
    tables = Report("", [Facts(table["rows"], table["title"]) for table in page["tables"]]).html()
    return (
        Headline(words).html()
        + findings.html()
        + FOLDED.format(words="All numbers of the plan", content=tables)
    )


def config_html(page: Mapping[str, Any] | None) -> str:
    """Return the difference from the parent run, and the folded YAML, as HTML."""
    if not page:
        return ""
    difference = ""
    if page["differences"]:
        caption = f"Differences from its parent run {page['parent']}"
        difference = Table(("setting", "here", page["parent"]), page["differences"], caption).html()
    elif page["parent"]:
        difference = f"<div>The same as its parent run {html.escape(page['parent'])}.</div>"
    yaml = f'<pre style="font-size:11px;margin:2px 0">{html.escape(page["yaml"])}</pre>'
    return difference + FOLDED.format(words="The resolved YAML", content=yaml)
