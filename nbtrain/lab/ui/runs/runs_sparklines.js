// The loss curves in the list of runs. They are requested only for visible rows, and kept until a run changes.

const CURVE_WIDTH = 84, CURVE_HEIGHT = 20, CURVE_AIR = 2;
// An active run's curve is read again after this time.
const CURVE_MS = 15000;
// The curves of rows that come into view together are requested together.
const CURVES_WAIT_MS = 60;
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

const curveState = (run) => `${run.job_id} ${run.state}`;

export class RunSparklines {
  /** `list` is the controller of runs.js. */
  constructor(list) {
    this.list = list;
    /** {name: {line, state, at}} */
    this.kept = new Map();
    this.cells = new Map();
    this.observer = new IntersectionObserver((entries) => {
      entries.forEach(({ target, isIntersecting }) => (target.dataset.seen = isIntersecting ? "1" : ""));
      this.plan();
    });
  }

  /** Show the curve of a run in a cell while it is in sight. */
  watch(name, cell) {
    this.cells.set(name, cell);
    this.observer.observe(cell);
    this.draw(name);
  }

  forget(name) {
    const cell = this.cells.get(name);
    if (cell) this.observer.unobserve(cell);
    this.cells.delete(name);
  }

  plan() {
    if (!this.timer) this.timer = setTimeout(() => this.read(), CURVES_WAIT_MS);
  }

  isOld(run) {
    const kept = this.kept.get(run.name);
    return !kept || kept.state !== curveState(run) || (run.active && Date.now() - kept.at > CURVE_MS);
  }

  async read() {
    this.timer = null;
    const { server, runs } = this.list;
    if (!server || !runs || this.reading || document.hidden) return;
    const isSeen = (name) => this.cells.has(name) && this.cells.get(name).dataset.seen;
    const wanted = runs.filter((run) => isSeen(run.name) && this.isOld(run));
    if (!wanted.length) return;
    this.reading = true;
    let lines = {};
    try {
      lines = (await server.call(`sparklines?${new URLSearchParams(wanted.map(({ name }) => ["name", name]))}`)).runs;
    } catch {
      // The list reports that the server does not respond. The old curves stay, and are requested again after the
      // list's next response.
      return;
    } finally {
      this.reading = false;
    }
    for (const run of wanted) {
      this.kept.set(run.name, { line: lines[run.name] || null, state: curveState(run), at: Date.now() });
      this.draw(run.name);
    }
    this.plan();
  }

  draw(name) {
    const kept = this.kept.get(name), cell = this.cells.get(name);
    if (kept && cell) cell.replaceChildren(...(kept.line ? [sparkline(kept.line)] : []));
  }

  end() {
    clearTimeout(this.timer);
    this.observer.disconnect();
  }
}

/** A curve {steps, values, label} without axes; it has a gap where a value is NaN. */
export function sparkline({ steps, values, label }) {
  const node = document.createElementNS(SVG_NAMESPACE, "svg"), finite = values.filter(Number.isFinite);
  const low = Math.min(...finite), high = Math.max(...finite);
  const x = (step) => CURVE_AIR + ((step - steps[0]) / (steps[steps.length - 1] - steps[0])) * (CURVE_WIDTH - 2 * CURVE_AIR);
  const y = (value) => CURVE_HEIGHT - CURVE_AIR - ((value - low) / (high - low || 1)) * (CURVE_HEIGHT - 2 * CURVE_AIR);
  const path = values.map((value, at) => {
    if (!Number.isFinite(value)) return "";
    return `${at && Number.isFinite(values[at - 1]) ? "L" : "M"}${x(steps[at]).toFixed(1)},${y(value).toFixed(1)}`;
  });
  const drawn = document.createElementNS(SVG_NAMESPACE, "path"), title = document.createElementNS(SVG_NAMESPACE, "title");
  drawn.setAttribute("d", path.join(""));
  title.textContent = label;
  for (const [key, value] of Object.entries({ width: CURVE_WIDTH, height: CURVE_HEIGHT, role: "img", class: "nbt-sparkline" }))
    node.setAttribute(key, value);
  node.setAttribute("aria-label", label);
  node.append(title, drawn);
  return node;
}
