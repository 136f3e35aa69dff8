"""Pictures for the README, docs and notebooks, taken in Chromium from real runs: make pictures.

    python -m tests.pictures [--only live-light plan-13b]

    build/pictures/output/        the runs, trained once and kept for the next call
    docs/pictures/<name>.png      each under 200 kB
    docs/pictures/manifest.json   description and size of each picture, and a hash of its sources

A picture is stale if the hash of its sources has changed: `make soak` fails then, `make test` does not.
"""

import argparse
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from tests.end_to_end import stations
from tests.end_to_end.jupyterlab import (
    CHROMIUM_FLAGS,
    REPOSITORY,
    Lab,
    find_chromium,
    open_notebook,
    run_cell,
    running_lab,
    write_notebook,
)
from tests.waiting import wait_until

WORKSPACE = REPOSITORY / "build" / "pictures"
PICTURES = REPOSITORY / "docs" / "pictures"
MANIFEST = PICTURES / "manifest.json"
MOST_BYTES = 200_000
# Points of the page; a picture has SCALE times as many pixels.
WIDTH, HEIGHT, SCALE = 1120, 760, 1.5
# Height of the page for a picture of one element, which would otherwise be cut at its end.
ELEMENT_HEIGHT = 1900
# Flat areas and text need few colors.
COLORS = 200

DEMO, RECIPE, SLOW = "gpt-tiny", "gpt3-tiny", "gpt-tiny-lr-1e-3"
LIVE = "my-first-gpt"
# The live pictures are taken between these steps of 400.
LIVE_STEPS = range(250, 380)
USER_INTERFACE = ("nbtrain/lab/**/*", "nbtrain/monitor/**/*.py", "nbtrain/base/printing/theme.py")
PLANNER = ("nbtrain/planner/**/*.py", "nbtrain/config/arithmetic/*.py", "nbtrain/base/printing/theme.py")
BUILT = ("prebuilt", "__pycache__", "node_modules")


@dataclass(frozen=True)
class Picture:
    """A picture: its description, and a function that opens the page it shows."""

    name: str
    shows: str
    """Description in one sentence, which is also the picture's alternative text."""
    show: Callable[[Any, Lab], None]
    sources: tuple[str, ...]
    """Patterns of the files that determine the picture."""
    element: str = ""
    """CSS selector, if the picture shows only this element."""
    dark: bool = False
    live: bool = False
    """Whether the run LIVE has to be training."""

    def sources_sha256(self) -> str:
        """Return the hash of all files that affect the picture."""
        digest = hashlib.sha256()
        for pattern in sorted(self.sources):
            for path in sorted(REPOSITORY.glob(pattern)):
                if path.is_file() and not set(BUILT) & set(path.parts):
                    digest.update(f"{path.relative_to(REPOSITORY)} {files.sha256_of(path)}\n".encode())
        return digest.hexdigest()


def run_tab(name: str, tab: str, sign: str) -> Callable[[Any, Lab], None]:
    """Return a function that opens a tab of a run, with the list of runs in the sidebar; `sign` is the
    element that appears last.
    """
    open_tab = stations.run_tab(name, tab, sign)

    def show(page: Any, lab: Lab) -> None:
        open_tab(page, lab)
        page.evaluate("() => window.jupyterapp.shell.activateById('nbtrain-sidebar')")
        page.locator(f".nbtrain-Sidebar [data-run='{DEMO}']").first.wait_for()
        narrow_sidebar(page)

    return show


def alone(show: Callable[[Any, Lab], None]) -> Callable[[Any, Lab], None]:
    """Return a function that opens the same page without the sidebar."""

    def show_alone(page: Any, lab: Lab) -> None:
        stations.alone(page)
        show(page, lab)

    return show_alone


def compare(page: Any, lab: Lab) -> None:
    stations.host(page, f"openCompare({json.dumps([DEMO, RECIPE, SLOW])})")
    page.locator(".nbtrain-CompareView polyline").nth(2).wait_for()


def runs(page: Any, lab: Lab) -> None:
    stations.host(page, "openRuns()")
    page.locator(f"#nbtrain-runs tr[data-run='{DEMO}']").wait_for()


def form(page: Any, lab: Lab) -> None:
    stations.host(page, "openForm({yaml: 'gpt-125m-2xdp'})")
    page.locator(".nbtrain-FormView .nbf-found p").first.wait_for()


def output_of(key: str, line: str, sign: str) -> Callable[[Any, Lab], None]:
    """Return a function that runs one line in a notebook; the picture is taken when `sign` appears in the
    output.
    """

    def show(page: Any, lab: Lab) -> None:
        name = f"{key}.ipynb"
        write_notebook(lab, name, f"import nbtrain as nb\n\n{line}")
        page.evaluate("() => window.jupyterapp && (window.onbeforeunload = null)")
        open_notebook(page, lab, name)
        page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        run_cell(page, 0)
        page.locator(f".jp-OutputArea-output {sign}").first.wait_for()
        # JupyterLab asks before it closes a notebook that is not saved.
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    return show


def narrow_sidebar(page: Any) -> None:
    page.evaluate(
        "(wanted) => window.jupyterapp.shell._hsplitPanel.setRelativeSizes([wanted, 1 - wanted, 0])",
        260 / WIDTH,
    )


OUTPUT = ".jp-OutputArea"
OVERVIEW = run_tab(LIVE, "Overview", ".nbt-charts polyline")
PLAN, SEARCH = 'nb.plan("gpt-13b-4xdp-4xpp")', 'nb.search("13B", gpus=64, gpu_type="A100-80GB")'
EVENTS = "table[aria-label=events] td"
ALL = (
    Picture(
        "live-light", "The page of a run in JupyterLab while it trains.", OVERVIEW, USER_INTERFACE, live=True
    ),
    Picture(
        *("live-dark", "The page of a run in JupyterLab's dark theme."),
        *(OVERVIEW, USER_INTERFACE),
        dark=True,
        live=True,
    ),
    Picture(
        *("plan-13b", "Memory of a 13B run on A100-80GB by pipeline stage, and its schedule."),
        output_of("plan-13b", f"nb.plan_picture({PLAN})", "img"),
        PLANNER,
        element=".jp-OutputArea img",
    ),
    Picture(
        *("search-13b", "Layouts of a 13B model on 64 A100-80GB: time of a step against memory."),
        output_of("search-13b", f"{SEARCH}.picture()", "img"),
        PLANNER,
        element=".jp-OutputArea img",
    ),
    Picture(
        *("compare", "Three runs compared: curves, settings that differ, results."),
        alone(compare),
        USER_INTERFACE,
    ),
    Picture("tensorboard", "TensorBoard in a tab of JupyterLab.", alone(lambda page, lab: board(page)), ()),
    Picture("runs", "The list of runs with filters, states and progress.", alone(runs), USER_INTERFACE),
    Picture(
        *("form", "The launch form: settings, whether the run fits, how long it takes."),
        alone(form),
        (*USER_INTERFACE, *PLANNER),
    ),
    Picture(
        *("what-if", "The what-if page: sliders over the layout, memory and time of a step."),
        output_of("what-if", 'nb.what_if("gpt-13b-4xdp-4xpp", 16, gpu_type="A100-80GB")', ".w-bar"),
        (*USER_INTERFACE, *PLANNER),
        element=OUTPUT,
    ),
    Picture(
        "replicas",
        "The ranks of a run.",
        run_tab(DEMO, "Replicas", "table[aria-label=ranks] td"),
        USER_INTERFACE,
    ),
    Picture("logs", "The logs of a run.", run_tab(DEMO, "Logs", "pre:has-text('step')"), USER_INTERFACE),
    Picture(
        *("resources", "CPU, memory, network and disks of a run over time."),
        run_tab(DEMO, "Resources", ".nbt-usage polyline"),
        USER_INTERFACE,
    ),
    Picture(
        *("data-card", "The data card of the demo: counts, lengths, documents."),
        output_of("data-card", f'nb.data_card("{DEMO}")', "pre"),
        ("nbtrain/dataset/views/*.py", "nbtrain/lab/widgets/data_browser.py"),
        element=OUTPUT,
    ),
    Picture(
        *("curves", "Loss, perplexity, learning rate and throughput of the demo."),
        output_of("curves", f'nb.curves("{DEMO}")', "img"),
        ("nbtrain/monitor/run/pictures.py", "nbtrain/base/printing/theme.py"),
        element=".jp-OutputArea img",
    ),
    Picture(
        *("token-confidence", "Generated text whose tokens are marked by how unsure the model was."),
        output_of(
            "token-confidence",
            f'nb.generate("{DEMO}", "Return the ", 80, temperature=0, logprobs=5)',
            "span",
        ),
        ("nbtrain/serving/*.py", "nbtrain/inference/*.py"),
        element=OUTPUT,
    ),
    Picture(
        *("job-page", "The page of a job: replicas, conditions, events and resources."),
        output_of("job-page", f'nb.open_run("{DEMO}").job_page()', "*"),
        USER_INTERFACE,
        element=OUTPUT,
    ),
    Picture(
        *("profile", "Where the time of the demo's steps goes."),
        output_of("profile", f'nb.open_run("{DEMO}-profile").profile()', "img, svg"),
        ("nbtrain/monitor/run/profiles.py", "nbtrain/train/profile/*.py", "nbtrain/base/printing/theme.py"),
        element=OUTPUT,
    ),
)


def board(page: Any) -> None:
    stations.host(page, f"openTensorBoard('{DEMO}')")
    frame = page.frame_locator(".nbtrain-TensorBoard iframe").frame_locator("iframe[title=TensorBoard]")
    frame.locator("card-view svg").first.wait_for()


def train_runs(environment: dict[str, str]) -> None:
    """Train the runs that the pictures show, unless they exist."""
    profile = [
        "mode=perf",
        "profile.enabled=true",
        "profile.repeat=1",
        "profile.active_steps=3",
        "batch.max_steps=6",
    ]
    for run, *overrides in (
        (DEMO,),
        (RECIPE,),
        (DEMO, f"name={SLOW}", "lr_schedule.lr=1e-3"),
        (DEMO, f"name={DEMO}-profile", *profile),
    ):
        name = next((word.partition("=")[2] for word in overrides if word.startswith("name=")), run)
        directory = RunDir(Path(environment["NBTRAIN_OUTPUT"]) / name)
        if directory.exists() and (directory.newest_job() is not None):
            command(environment, "wait", name)
            continue
        command(environment, "prepare", run, *overrides)
        command(environment, "submit", run, *overrides)
        command(environment, "wait", name)


def command(environment: dict[str, str], *words: str) -> None:
    """Run an nbtrain command, and raise an error if it fails."""
    print("$ nbtrain", *words, flush=True)
    subprocess.run(
        [sys.executable, "-m", "nbtrain", *words],
        env=environment,
        cwd=WORKSPACE,
        check=True,
        stdout=subprocess.DEVNULL,
    )


@contextmanager
def live_run(lab: Lab) -> Iterator[None]:
    """Train the run LIVE while pictures are taken between the steps LIVE_STEPS; delete the run afterwards."""
    directory = RunDir(lab.output / LIVE)
    if directory.exists():
        command(lab.environment, "delete", LIVE, "--yes", "--force")
    command(lab.environment, "submit", DEMO, f"name={LIVE}")
    try:
        wait_until(lambda: step_of(directory) >= LIVE_STEPS.start, lambda: f"step {step_of(directory)}")
        yield
        assert step_of(directory) in LIVE_STEPS, "the run was over before its pictures were taken"
    finally:
        command(lab.environment, "cancel", LIVE, "--now")
        command(lab.environment, "delete", LIVE, "--yes", "--force")


def step_of(directory: RunDir) -> int:
    """Return the newest step in the heartbeat of a run's first rank; 0 if there is none."""
    beats = list(directory.path.glob("jobs/*/heartbeat/0.json"))
    record = files.read_json(beats[-1]) if beats else None
    return int((record or {}).get("step") or 0)


def take(page: Any, lab: Lab, picture: Picture) -> bytes:
    """Take a picture and return it as a PNG with few colors, smaller than MOST_BYTES."""
    from PIL import Image

    stations.choose_theme(page, "Dark" if picture.dark else "Light")
    page.set_viewport_size({"width": WIDTH, "height": ELEMENT_HEIGHT if picture.element else HEIGHT})
    try:
        picture.show(page, lab)
    except Exception:
        page.screenshot(path=str(WORKSPACE / f"failed-{picture.name}.png"))
        raise
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 1500)))")
    place = page.locator(picture.element).first if picture.element else page
    image = Image.open(io.BytesIO(place.screenshot())).convert("RGB")
    for colors in (COLORS, COLORS // 2, COLORS // 4):
        buffer = io.BytesIO()
        few = image.quantize(colors, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(buffer, "PNG", optimize=True)
        if buffer.tell() < MOST_BYTES:
            return buffer.getvalue()
    raise ValueError(
        f"{picture.name} has {buffer.tell():,} bytes with {colors} colors; at most {MOST_BYTES:,}"
    )


def main() -> None:
    """Take the pictures named on the command line, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=[picture.name for picture in ALL], metavar="NAME")
    wanted = parser.parse_args().only
    chosen = [picture for picture in ALL if not wanted or picture.name in wanted]
    PICTURES.mkdir(parents=True, exist_ok=True)
    WORKSPACE.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    from playwright.sync_api import sync_playwright

    with (
        running_lab(WORKSPACE, OMP_NUM_THREADS=str(os.cpu_count() or 1)) as lab,
        sync_playwright() as playwright,
    ):
        train_runs(lab.environment)
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        page = context.new_page()
        page.set_default_timeout(180_000)
        page.goto(lab.url("lab?reset"))
        page.locator(".jp-Launcher").wait_for()
        quiet = [picture for picture in chosen if not picture.live]
        for picture in quiet:
            write([(picture, take(page, lab, picture))])
        if live := [picture for picture in chosen if picture.live]:
            with live_run(lab):
                page.goto(lab.url("lab?reset"))
                page.locator(".jp-Launcher").wait_for()
                taken = [(picture, take(page, lab, picture)) for picture in live]
            write(taken)
        browser.close()


def write(taken: list[tuple[Picture, bytes]]) -> None:
    """Write the pictures, and then their entries in the manifest."""
    manifest = files.read_json(MANIFEST) if MANIFEST.exists() else {}
    for picture, content in taken:
        path = PICTURES / f"{picture.name}.png"
        files.write_bytes(path, content)
        print(f"{path.relative_to(REPOSITORY)}: {len(content):,} bytes", flush=True)
        manifest[picture.name] = {
            "shows": picture.shows,
            "bytes": len(content),
            "sources_sha256": picture.sources_sha256(),
        }
    names = {picture.name for picture in ALL}
    kept = {name: entry for name, entry in sorted(manifest.items()) if name in names}
    files.write_text(MANIFEST, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
