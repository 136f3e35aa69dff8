"""REST calls of the user interface, run in node: it sends as many requests as a run's curves need."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from nbtrain.lab.ui import script
from nbtrain.monitor.run.metrics_range import MOST_TAGS

UI = script.FOLDER

CHECK = """
import { MOST_NAMES, Server } from "./server.mjs";
const names = Array.from({ length: 150 }, (_, at) => `loss/set-${at}`);
const asked = [];
globalThis.document = { cookie: "" };
globalThis.fetch = async (url) => {
  const query = new URL(url).searchParams;
  const wanted = query.has("tags") ? query.get("tags").split(",") : ["loss"];
  asked.push([new URL(url).pathname, query.get("points"), wanted.length]);
  const series = Object.fromEntries(wanted.map((name) => [name, { value: [1] }]));
  const tags = ["loss", ...names].map((tag) => ({ tag }));
  return { ok: true, text: async () => JSON.stringify({ tags, series, reading: 1 }) };
};
const server = new Server({ base: "http://lab.test/user/x", token: "" });
const first = await server.metrics("gpt", { points: 400 });
const again = await server.metrics("gpt", { points: 400 }, first.tags);
const counts = [first, again].map(({ series }) => Object.keys(series).length);
const saved = [null, ["loss"], names].map((wanted) => new URL(server.csvUrl("gpt", wanted)));
const csv = saved.map(({ pathname, search }) => [pathname, search.split("%2C").length, search]);
console.log(JSON.stringify({ most: MOST_NAMES, counts, asked, csv }));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_all_curves_of_a_run_are_read(tmp_path: Path) -> None:
    """All curves of a run are read, also with a blend of 150 datasets, whose names do not fit in one
    request.
    """
    (tmp_path / "server.mjs").write_text(
        (UI / "host" / "server.js").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "check.mjs").write_text(CHECK, encoding="utf-8")
    done = subprocess.run(["node", str(tmp_path / "check.mjs")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["counts"] == [151, 151] and said["most"] <= MOST_TAGS
    assert [number for *_, number in said["asked"]] == [1, 60, 60, 30, 60, 60, 31]
    assert {(path, points) for path, points, _ in said["asked"]} == {
        ("/user/x/nbtrain/run/gpt/metrics", "400")
    }
    # A request for all curves names none; a request for some has at most as many as the server allows.
    assert {path for path, *_ in said["csv"]} == {"/user/x/nbtrain/run/gpt/metrics.csv"}
    assert [number for _, number, _ in said["csv"]] == [1, 1, 60]
    assert [search for *_, search in said["csv"][:2]] == ["", "?tags=loss"]
