"""A browser page that contains a single view, with a dictionary as its server; such a test takes a second.

view_page(browser, {"run/gpt": lambda query, body: {...}}, mount)    a page whose answers come from Python
answered(page), run_until(page, shown)           wait until the page has read them, or shows something
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote_plus

from nbtrain.base.errors import NbtrainError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.run_actions import run_shown
from nbtrain.lab.server.logs import hit_shown
from nbtrain.lab.server.requests import status_of_error
from nbtrain.lab.ui.script import script
from nbtrain.monitor.job.job_tables import job_tables
from nbtrain.monitor.logs import log_search, logs
from nbtrain.monitor.logs.log_lines import LINES
from nbtrain.monitor.run.run_view import RunView

BASE = "http://lab.test/user/x/"
HTML = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>view</title>
<script id="jupyter-config-data" type="application/json">{"baseUrl": "/user/x/", "token": "secret"}</script>
</head><body><div id="root"></div></body></html>"""
Answer = Callable[[dict[str, str], Any], Any]
"""(query, body) -> the route's answer as JSON; an Exception is a refusal (409)."""
# From here on, `window.answered` waits for every request and the reading of its answer.
KEEP_ANSWERS = """() => {
  const keep = (promise) => {
    window.answered = Promise.allSettled([window.answered, promise]);
    return promise;
  };
  const { fetch } = window, { json, text } = Response.prototype;
  window.fetch = (...asked) => keep(fetch(...asked));
  Response.prototype.json = function () { return keep(json.call(this)); };
  Response.prototype.text = function () { return keep(text.call(this)); };
}"""
# The fake clock does not stop a MessageChannel: its message arrives after everything that an answer started.
ANSWERED = """async () => {
  for (let seen = null; seen !== window.answered; ) {
    seen = window.answered;
    await seen;
    await new Promise((done) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = done;
      port2.postMessage(0);
    });
  }
}"""


def routes_of(run: RunDir) -> dict[str, Answer]:
    """Return routes that answer as a server would about one run."""
    view = RunView(run)

    def log(query: dict[str, str], _: Any) -> Any:
        job = run.job(query["job"]) if "job" in query else run.newest_job()
        offset, line = (int(query[key]) if key in query else None for key in ("offset", "line"))
        attempt = int(query["attempt"]) if "attempt" in query else None
        return asdict(LINES.read(logs.log_path(job, query["rank"], attempt), offset, line))

    def search(query: dict[str, str], _: Any) -> Any:
        ids = [query["job"]] if "job" in query else [*reversed(run.job_ids())]
        text, regex = unquote_plus(query["q"]), query.get("regex") == "1"
        found = log_search.search(map(run.job, ids), text, None, ignore_case=True, is_pattern=regex)
        hits, most = [hit_shown(asdict(hit)) for hit in found], int(query["limit"])
        return {"hits": hits[:most], "more": len(hits) > most, "complete": True}

    return {
        f"run/{run.name}": lambda query, body: run_shown(view),
        f"run/{run.name}/job": lambda query, body: job_tables(run, query.get("job")),
        f"run/{run.name}/log": log,
        f"run/{run.name}/log/search": search,
    }


@contextmanager
def view_page(
    browser: Any,
    routes: dict[str, Answer],
    mount: str,
    width: int = 1000,
    module: str = "run/panel",
    still: bool = False,
    exports: tuple[str, ...] = (),
) -> Iterator[Any]:
    """Open a page and run `mount` in it: JavaScript that can use `ui` (the `module`) and `root`.

    `exports` are names that the module only imports.

    Errors in the page fail the test. With `still`, the page's clock advances only by
    page.clock.run_for(milliseconds); after that, answered(page) delivers the responses.
    """
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.asked = []

    def answer(route: Any) -> None:
        request = route.request
        path, _, query = request.url.removeprefix(f"{BASE}nbtrain/").partition("?")
        words = dict(part.split("=", 1) for part in query.split("&") if "=" in part)
        body = json.loads(request.post_data) if request.post_data else None
        if request.method != "GET":
            page.asked.append((request.method, path, body))
        try:
            value = routes[path](words, body)
        except KeyError:
            route.fulfill(status=404, json={"message": "HTTP 404"})
        except NbtrainError as error:
            route.fulfill(status=status_of_error(error), json={"message": str(error)})
        else:
            route.fulfill(json=value)

    page.route(f"{BASE}nbtrain/**", answer)
    text = script(module) + (f"\nexport {{ {', '.join(exports)} }};\n" if exports else "")
    page.route(f"{BASE}ui.js", lambda route: route.fulfill(body=text, content_type="text/javascript"))
    page.route(f"{BASE}view.html", lambda route: route.fulfill(body=HTML, content_type="text/html"))
    if still:
        page.clock.install(time=0)
    page.goto(f"{BASE}view.html")
    if still:
        page.clock.pause_at(3600)
        page.evaluate(KEEP_ANSWERS)
    load = f"const ui = await import('{BASE}ui.js'), root = document.getElementById('root');"
    page.evaluate(f"async () => {{ {load} window.end = {mount}; }}")
    yield page
    context.close()
    assert errors == []


def answered(page: Any) -> None:
    """Wait until a `still` page has processed all responses, before the test advances its clock."""
    page.evaluate(ANSWERED)


def run_until(page: Any, shown: Any) -> None:
    """Advance the clock of a `still` page second by second until the locator `shown` finds something."""
    # The server answers with its last description of a run for a moment, by its own clock.
    for _ in range(3600):
        page.clock.run_for(1000)
        answered(page)
        if shown.count():
            return
    raise AssertionError(f"an hour later the page does not show {shown}")
