// The runs of this server, looked at by one poll for the sidebar, the Running panel, the status bar and the
// notifications. A page that is hidden does not look.

import { Poll } from "@lumino/polling";
import { Signal, type ISignal } from "@lumino/signaling";

import type { Server } from "../../ui/server.js";

export interface RunEntry {
  name: string;
  state: string;
  active: boolean;
  cause: string | null;
  step: number | null;
  max_steps: number | null;
}

// An idle server is looked at so many times more rarely.
const IDLE_FACTOR = 4;
const LONGEST_MS = 300_000;
const ACTIVE = ["QUEUED", "STARTING", "RUNNING", "RESTARTING", "SUSPENDED", "STOPPING"];

export class RunsWatch {
  constructor(readonly server: Server) {
    this._poll = new Poll({
      auto: false,
      name: "nbtrain:runs",
      factory: () => this._look(),
      frequency: { interval: 5000, backoff: true, max: LONGEST_MS },
    });
  }

  /** The newest list; empty until the server has answered. */
  get runs(): readonly RunEntry[] {
    return this._runs;
  }

  get active(): RunEntry[] {
    return this._runs.filter((run) => run.active);
  }

  /** Why there is no list, in words for the page; "" if there is one. */
  get problem(): string {
    return this._problem;
  }

  /** Whether there was an answer. */
  get looked(): boolean {
    return this._looked;
  }

  /** After each look. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** A run that was active at an earlier look, and is no more. */
  get ended(): ISignal<this, RunEntry> {
    return this._ended;
  }

  start(refreshSeconds: number): void {
    this._interval = 1000 * refreshSeconds;
    void this._poll.start();
  }

  refresh(): void {
    void this._poll.refresh();
  }

  private async _look(): Promise<void> {
    try {
      const answer = await this.server.call("runs");
      const runs: RunEntry[] = answer.runs.map((run: RunEntry) => ({
        ...run,
        active: run.active ?? ACTIVE.includes(run.state),
      }));
      const before = new Set(this.active.map((run) => run.name));
      this._runs = runs;
      this._looked = true;
      this._problem = "";
      for (const run of runs) if (before.has(run.name) && !run.active) this._ended.emit(run);
    } catch (error) {
      this._runs = [];
      this._problem = inWords(error as Error & { status?: number });
    }
    const interval = this._interval * (this._runs.some((run) => run.active) ? 1 : IDLE_FACTOR);
    this._poll.frequency = { interval, backoff: true, max: LONGEST_MS };
    this._changed.emit();
    // The poll waits longer and longer while there is no server half.
    if (this._problem) throw new Error(this._problem);
  }

  private _runs: RunEntry[] = [];
  private _problem = "";
  private _looked = false;
  private _interval = 5000;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _ended = new Signal<this, RunEntry>(this);
  private readonly _poll: Poll;
}

function inWords(error: Error & { status?: number }): string {
  if (error.status === 404)
    return (
      "This Jupyter server does not have the server half of nbtrain. Install nbtrain in the environment that " +
      "runs the server (pip install nbtrain), then restart the server."
    );
  if (error.status === 403) return "This Jupyter server asks for a login: reload the page.";
  return `The Jupyter server does not answer (${error.message}); trying again.`;
}
