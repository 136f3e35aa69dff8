// Names that must not change, because menus and saved layouts refer to them.

export const CATEGORY = "nbtrain";
export const PLUGIN = "nbtrain:plugin";
export const SIDEBAR_ID = "nbtrain-sidebar";

export const ids = {
  showRuns: "nbtrain:show-runs",
  openRuns: "nbtrain:open-runs",
  openRun: "nbtrain:open-run",
  newRun: "nbtrain:new-run",
  compare: "nbtrain:compare",
  stopRun: "nbtrain:stop-run",
  resumeRun: "nbtrain:resume-run",
  tensorBoard: "nbtrain:tensorboard",
  models: "nbtrain:models",
  trainOnText: "nbtrain:train-on-text",
} as const;
