// The runs of this server for the Running panel, the status bar and notifications, which share one poll with the lists of
// the page. A hidden page does not poll.

import { Signal, type ISignal } from "@lumino/signaling";

import { runsFeed } from "../../ui/runs/runs_feed.js";
import type { Server } from "../../ui/host/server.js";

export interface RunEntry {
  name: string;
  state: string;
  /** The label of the state, such as Stopping..., and its tone. */
  pill: [string, string];
  active: boolean;
  cause: string | null;
  step: number | null;
  max_steps: number | null;
}

type Feed = ReturnType<ReturnType<typeof runsFeed>["join"]>;

/** The tone of a run's state: live, good, wait, bad or calm. The server decides it (base/run_directory/jobstate.py). */
export const toneOf = (run: RunEntry) => run.pill[1];

const LONGEST_MS = 300_000;
// Key of the runs that were active at the last poll. A run that ends during a reload is thus reported after the reload.
const ACTIVE_KEY = "nbtrain:active-runs";

function savedActive(root: string): Set<string> {
  try {
    const { root: saved, names } = JSON.parse(sessionStorage.getItem(ACTIVE_KEY) ?? "{}");
    return new Set(saved === root ? (names as string[]) : []);
  } catch {
    // There is no storage, or the entry was not written by this code.
    return new Set();
  }
}

export class RunsWatch {
  constructor(readonly server: Server) {
    // Poll at once after a request from this page, such as a submission.
    server.changed = () => this.refresh();
  }

  /** The newest list of runs; empty until the server has responded, and while it does not respond. */
  get runs(): readonly RunEntry[] {
    return this._runs;
  }

  get active(): RunEntry[] {
    return this._runs.filter((run) => run.active);
  }

  /** Emitted after each poll. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted for a run that was active at an earlier poll and has ended. */
  get ended(): ISignal<this, RunEntry> {
    return this._ended;
  }

  start(refreshSeconds: number): void {
    this._interval = 1000 * refreshSeconds;
    this._feed ??= runsFeed(this.server).join(this);
    this._feed.plan();
  }

  refresh(): void {
    this._feed?.look();
  }

  // --- the watcher's side of the feed ---

  wait(): number {
    // The interval grows while the server extension is missing. The list of runs reports that it is missing.
    return Math.min(LONGEST_MS, this._interval * 2 ** this._failures);
  }

  took(value: { runs: RunEntry[]; run_root_id: string }): void {
    this._runs = value.runs;
    this._failures = 0;
    this._wasActive ??= savedActive(value.run_root_id);
    const wasActive = this._wasActive;
    const ended = this._runs.filter((run) => wasActive.has(run.name) && !run.active);
    // This list is kept while the server does not respond, so that runs that end meanwhile are noticed afterwards.
    this._wasActive = new Set(this.active.map((run) => run.name));
    try {
      sessionStorage.setItem(ACTIVE_KEY, JSON.stringify({ root: value.run_root_id, names: [...this._wasActive] }));
    } catch {
      /* the storage is full or disabled: an end during a reload is not reported */
    }
    ended.forEach((run) => this._ended.emit(run));
    this._changed.emit();
  }

  failed(): void {
    this._runs = [];
    this._failures += 1;
    this._changed.emit();
  }

  private _feed: Feed | null = null;
  private _runs: RunEntry[] = [];
  /** Runs that were active at the last poll; null before the first. */
  private _wasActive: Set<string> | null = null;
  private _interval = 5000;
  private _failures = 0;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _ended = new Signal<this, RunEntry>(this);
}
