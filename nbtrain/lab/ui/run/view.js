// The detail view of a run: its head, the tabs, and the open page. Elements are created once and updated from each
// snapshot. A page is updated only while it is open.

import { Config } from "../run_tabs/config.js";
import { Logs } from "../run_tabs/logs.js";
import { Metrics } from "../run_tabs/metrics.js";
import { Overview } from "../run_tabs/overview.js";
import { Plan } from "../run_tabs/plan.js";
import { Replicas } from "../run_tabs/replicas.js";
import { Resources } from "../run_tabs/resources.js";
import { RunHead } from "./run_head.js";
import { addStyle } from "../elements/style.js";
import { Tabs } from "../elements/tabs.js";
import { button, choices, element } from "../elements/dom.js";

// key: [title, class, whether the page shows files that the job keeps]
const PAGES = {
  overview: ["Overview", Overview, true],
  replicas: ["Replicas", Replicas, true],
  logs: ["Logs", Logs, false],
  resources: ["Resources", Resources, true],
  metrics: ["Metrics", Metrics, false],
  plan: ["Plan", Plan, false],
  config: ["Config", Config, true],
};

export class View {
  /** `run` is the controller of run.js. */
  constructor(root, run, tab) {
    this.root = root;
    this.run = run;
    this.kept = null;
    addStyle();
    root.classList.add("nbt-root", "nbtrain-panel");
    this.head = new RunHead(run, (key, overrides) => run.act(key, overrides));
    this.pages = {};
    const titles = Object.entries(PAGES).map(([key, [title]]) => [key, title]);
    this.tabs = new Tabs(titles, (key) => this.opened(key));
    this.jobChoice = element("select");
    this.jobChoice.hidden = true;
    this.jobChoice.setAttribute("aria-label", "job to show");
    this.jobChoice.addEventListener("change", () =>
      run.chooseJob(this.jobChoice.selectedIndex > 0 ? this.jobChoice.value : ""),
    );
    this.tabs.bar.append(element("span", "nbt-room"), this.jobChoice);
    this.older = element("div", "nbt-note nbt-alert nbt-older");
    this.older.setAttribute("role", "note");
    root.replaceChildren(this.head.node, this.tabs.bar, this.older, this.tabs.page);
    this.resized = new ResizeObserver(() => {
      const page = this.pages[this.tabs.key];
      if (page && page.resize) page.resize();
    });
    this.resized.observe(root);
    this.tabs.select(Object.hasOwn(PAGES, tab) ? tab : "overview");
  }

  page(key) {
    if (!this.pages[key]) this.pages[key] = new PAGES[key][1](this.run);
    return this.pages[key];
  }

  opened(key) {
    this.root.dataset.page = key;
    const page = this.page(key);
    this.tabs.page.replaceChildren(page.node);
    if (page.opened) page.opened();
    if (this.snap) this.drawPage();
    if (PAGES[key][2]) this.run.keep(true);
  }

  /** The server responds again; the open page may have been drawn without it. */
  reopened() {
    const page = this.page(this.tabs.key);
    if (page.opened) page.opened();
  }

  /** Whether the open page shows files that a job keeps. */
  showsKept() {
    return PAGES[this.tabs.key][2];
  }

  jobChosen(job) {
    this.kept = null;
    if (job) this.jobChoice.value = job;
    this.drawOlder();
    const page = this.pages[this.tabs.key];
    if (page && page.forget) page.forget();
  }

  /** Show the pages of the newest job, or of the chosen one. */
  take(value) {
    if (this.run.job && value.job_id !== this.run.job) return;
    this.kept = value;
    choices(this.jobChoice, value.jobs);
    this.jobChoice.value = value.job_id;
    this.jobChoice.hidden = value.jobs.length < 2;
    if (this.snap) this.drawPage();
  }

  draw(snap) {
    this.snap = snap;
    const { root } = this;
    root.dataset.state = snap.state;
    root.dataset.step = snap.progress ? snap.progress.step : "";
    root.dataset.run = snap.name;
    this.head.draw(snap);
    this.drawOlder();
    this.drawPage();
  }

  /** Show on every page that the chosen job is not the newest. */
  drawOlder() {
    const { job } = this.run, newest = this.snap && this.snap.job && this.snap.job.job_id;
    const chosen = job && newest && job !== newest ? job : "";
    if (chosen === this.olderJob) return;
    this.olderJob = chosen;
    const words = `Job ${chosen} is an older job of this run. Logs, Replicas, Resources, Config and the `
      + "events show this older job; everything else shows the run as it is now. ";
    const back = () => this.run.chooseJob("");
    this.older.replaceChildren(...(chosen ? [words, button("Show the newest job", "", back)] : []));
  }

  drawPage() {
    const page = this.page(this.tabs.key);
    page.draw(this.snap, this.kept);
  }

  dispose() {
    this.resized.disconnect();
    this.head.dispose();
    Object.values(this.pages).forEach((page) => page.dispose && page.dispose());
  }
}
