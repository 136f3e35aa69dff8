"""HTML tables: alignment, escaped cells, and styles that JupyterLab keeps in an untrusted notebook."""

from nbtrain.base.html_table import grouped_table, html_table, words_row


def test_figures_stand_to_the_right_and_cells_are_escaped() -> None:
    page = html_table(("name", "count"), [("<b>", "1,234"), ("x", "7%")], "caption & more")
    assert page.count("text-align:right") == 3 and "&lt;b&gt;" in page and "<b>" not in page
    assert "caption &amp; more" in page
    assert page.count("<tr ") == 3 and "<style" not in page and "class=" not in page


def test_facts_have_no_heading_and_names_that_step_back() -> None:
    page = html_table(("", ""), [("tokens", "5")])
    assert "<thead>" not in page and page.count("opacity:.7") == 1 and "text-align:right" not in page


def test_groups_are_one_grid() -> None:
    page = grouped_table({"Memory": {"one rank": "5 GiB", "  weights": "2 GiB"}, "Time": {"time": "3 min"}})
    assert page.count("<table") == 1 and page.count('colspan="2"') == 2
    assert page.count("padding-left:16px") == 1 and ">weights<" in page


def test_words_have_the_colour_of_their_kind() -> None:
    page = words_row([("fits", "no, 5 GiB too much", "bad"), ("time", "3 min", "")])
    assert "color:#e04444" in page and "color:inherit" in page
