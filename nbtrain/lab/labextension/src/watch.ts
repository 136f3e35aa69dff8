// The runs of this server, looked at by one poll for the Running panel, the status bar and the notifications. A
// page that is hidden does not look.

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

export class RunsWatch {
  constructor(readonly server: Server) {
    this._poll = new Poll({
      auto: false,
      name: "nbtrain:runs",
      factory: () => this._look(),
      frequency: { interval: 5000, backoff: true, max: LONGEST_MS },
    });
  }

  /** The newest list; empty until the server has answered, and while it does not. */
  get runs(): readonly RunEntry[] {
    return this._runs;
  }

  get active(): RunEntry[] {
    return this._runs.filter((run) => run.active);
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
    let failure: unknown = null;
    try {
      this._runs = (await this.server.call("runs")).runs as RunEntry[];
      const ended = this._runs.filter((run) => this._wasActive.has(run.name) && !run.active);
      // Kept while the server does not answer: what ends meanwhile is noticed afterwards.
      this._wasActive = new Set(this.active.map((run) => run.name));
      ended.forEach((run) => this._ended.emit(run));
    } catch (error) {
      this._runs = [];
      failure = error;
    }
    const interval = this._interval * (this._runs.some((run) => run.active) ? 1 : IDLE_FACTOR);
    this._poll.frequency = { interval, backoff: true, max: LONGEST_MS };
    this._changed.emit();
    // The poll waits longer and longer while there is no server half; the list of runs says so.
    if (failure) throw failure;
  }

  private _runs: RunEntry[] = [];
  private _wasActive = new Set<string>();
  private _interval = 5000;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _ended = new Signal<this, RunEntry>(this);
  private readonly _poll: Poll;
}
