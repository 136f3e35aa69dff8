// The active runs in Jupyter's own panel "Running Terminals and Kernels".

import type { IRunningSessionManagers, IRunningSessions } from "@jupyterlab/running";

import type { Host } from "./host";
import { runsIcon } from "./icons";
import type { RunsWatch } from "./watch";

export function addToRunning(
  managers: IRunningSessionManagers,
  watch: RunsWatch,
  host: Host,
  stop: (name: string) => void,
): void {
  managers.add({
    name: "nbtrain Runs",
    running: () =>
      watch.active.map(
        (run): IRunningSessions.IRunningItem => ({
          open: () => host.openRun(run.name),
          shutdown: () => stop(run.name),
          icon: () => runsIcon,
          label: () => run.name,
          labelTitle: () => `${run.name}: ${run.pill[0]}`,
          detail: () => (run.max_steps ? `${run.pill[0]} ${run.step ?? 0} / ${run.max_steps}` : run.pill[0]),
        }),
      ),
    shutdownAll: () => watch.active.forEach((run) => stop(run.name)),
    refreshRunning: () => watch.refresh(),
    runningChanged: watch.changed,
    shutdownLabel: "Stop the job; in mode full, it saves a checkpoint first",
    shutdownAllLabel: "Stop All",
    shutdownAllConfirmationText:
      "Stop all active nbtrain runs? Each run exits at its next step; in mode full, it saves a checkpoint first and can be resumed.",
  });
}
