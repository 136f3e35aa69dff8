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
    name: "Runs of nbtrain",
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
    shutdownLabel: "Stop: save a checkpoint and end the job",
    shutdownAllLabel: "Stop All",
    shutdownAllConfirmationText:
      "Stop all active runs of nbtrain? Each saves a checkpoint at its next step and ends; it can be resumed.",
  });
}
