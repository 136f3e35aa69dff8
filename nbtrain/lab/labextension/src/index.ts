// nbtrain in JupyterLab and Notebook 7: commands, menus, and where the views open. The views are in nbtrain/lab/ui.

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, InputDialog } from "@jupyterlab/apputils";
import { IFileBrowserFactory } from "@jupyterlab/filebrowser";
import { ILauncher } from "@jupyterlab/launcher";
import { INotebookTracker } from "@jupyterlab/notebook";
import { IRunningSessionManagers } from "@jupyterlab/running";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { IStatusBar } from "@jupyterlab/statusbar";
import type { ReadonlyPartialJSONObject } from "@lumino/coreutils";

import { Server, pageConfig } from "../../ui/host/server.js";
import { linkedPlace, linkedRuns, makeHost, notify, type Place } from "./host";
import { firstInLaunchers } from "./launcher";
import { modelsIcon, newRunIcon, runsIcon, tensorBoardIcon } from "./icons";
import { CATEGORY, PLUGIN, SIDEBAR_ID, ids } from "./names";
import { addToRunning } from "./running";
import { makeSidebar } from "./sidebar";
import { Status } from "./status";
import { chosenTexts, trainOn } from "./text";
import { Tabs, modelsFrame, only, tensorBoardFrame } from "./tabs";
import { compareView, formView, runView, runsView } from "./views";
import { RunsWatch, toneOf, type RunEntry } from "./watch";

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: "nbtrain's training runs: sidebar, tabs, launcher tiles and status bar.",
  autoStart: true,
  optional: [
    ICommandPalette,
    IFileBrowserFactory,
    ILauncher,
    ILayoutRestorer,
    INotebookTracker,
    IRunningSessionManagers,
    ISettingRegistry,
    IStatusBar,
  ],
  activate,
};

function activate(
  app: JupyterFrontEnd,
  palette: ICommandPalette | null,
  browsers: IFileBrowserFactory | null,
  launcher: ILauncher | null,
  restorer: ILayoutRestorer | null,
  notebooks: INotebookTracker | null,
  running: IRunningSessionManagers | null,
  registry: ISettingRegistry | null,
  bar: IStatusBar | null,
): void {
  const { commands, shell } = app;
  const config = pageConfig();
  if (!config) return;
  const server = new Server(config);
  const watch = new RunsWatch(server);
  const host = makeHost(app, notebooks);
  // For views in the outputs of notebooks (lab/ui/host/host.js).
  (window as any).nbtrainHost = host;

  const text = (args: ReadonlyPartialJSONObject, key: string) => String(args[key] ?? "");
  const names = (args: ReadonlyPartialJSONObject) => ((args.names as string[] | undefined) ?? []).map(String);
  const act = async (name: string, action: "stop" | "resume") => {
    try {
      await server.call(`run/${encodeURIComponent(name)}/${action}`, "POST");
    } catch (error) {
      notify(`${name}: ${(error as Error).message}`, "error");
    }
    watch.refresh();
  };

  // The page may have been opened by a link to runs. The place in the link is shown once, even if the tab is restored.
  const linked = linkedRuns(), places = new Map<string, Place>();
  if (linked.length === 1) places.set(linked[0], linkedPlace());
  const placeOf = (name: string) => {
    const place = places.get(name);
    places.delete(name);
    return place;
  };

  const runs = new Tabs(app, {
    command: ids.openRun,
    namespace: "nbtrain-run",
    icon: runsIcon,
    label: (args) => text(args, "name"),
    own: (args) => only(args, "name"),
    content: (args) => runView(server, host, text(args, "name"), placeOf(text(args, "name"))),
  });
  const lists = new Tabs(app, {
    command: ids.openRuns,
    namespace: "nbtrain-runs",
    icon: runsIcon,
    label: () => "Runs",
    own: () => ({}),
    content: () => runsView(server, host, false),
  });
  const forms = new Tabs(app, {
    command: ids.newRun,
    namespace: "nbtrain-form",
    icon: newRunIcon,
    label: (args) => (args.clone ? `Clone of ${text(args, "clone")}` : "New run"),
    own: (args) => only(args, "yaml", "overrides", "clone"),
    content: (args, id) => formView(server, host, args, id),
  });
  const comparisons = new Tabs(app, {
    command: ids.compare,
    namespace: "nbtrain-compare",
    icon: runsIcon,
    label: (args) => comparedWords(names(args)),
    caption: (args) => `Compare ${names(args).join(", ")}`,
    own: (args) => only(args, "names"),
    content: (args, _, changed) => compareView(server, host, names(args), (now) => changed({ names: now })),
  });
  const boards = new Tabs(app, {
    command: ids.tensorBoard,
    namespace: "nbtrain-tensorboard",
    icon: tensorBoardIcon,
    label: (args) => (args.name ? `TensorBoard: ${text(args, "name")}` : "TensorBoard"),
    own: (args) => only(args, "name"),
    content: (args) => tensorBoardFrame(text(args, "name")),
  });
  const models = new Tabs(app, {
    command: ids.models,
    namespace: "nbtrain-models",
    icon: modelsIcon,
    label: (args) => (args.name ? `Try ${text(args, "name")}` : "Try a model"),
    own: (args) => only(args, "name"),
    content: (args) => modelsFrame(text(args, "name")),
  });

  commands.addCommand(ids.showRuns, {
    label: "Show nbtrain Runs",
    caption: "Show the runs in the sidebar",
    icon: runsIcon,
    execute: () => shell.activateById(SIDEBAR_ID),
  });
  commands.addCommand(ids.openRuns, {
    label: (args) => (args.isLauncher ? "Runs" : "Show All Runs in a Tab"),
    caption: "Show the runs of this server in a tab",
    icon: runsIcon,
    execute: (args) => lists.open(args as any),
  });
  commands.addCommand(ids.openRun, {
    label: "Open Run...",
    caption: "Open a run in a tab, with its curves, logs, events and resources",
    icon: runsIcon,
    execute: async (args) => {
      const name = text(args, "name") || (await choose(watch.runs, "Open"));
      return name ? runs.open({ name }) : undefined;
    },
  });
  commands.addCommand(ids.newRun, {
    label: (args) => (args.isLauncher ? "New Run" : "New Run..."),
    caption: "Configure, check and submit a run in a form",
    icon: newRunIcon,
    execute: (args) => forms.open(args as any),
  });
  commands.addCommand(ids.trainOnText, {
    label: "Train on This Text",
    caption: "Open the form for a run that trains on this text",
    icon: newRunIcon,
    isVisible: () => chosenTexts(app, browsers).length > 0,
    execute: () => {
      const paths = chosenTexts(app, browsers);
      if (paths.length) trainOn(server, paths, host.openForm);
    },
  });
  commands.addCommand(ids.compare, {
    label: "Compare Runs",
    caption: "Compare the curves, settings and results of several runs",
    icon: runsIcon,
    isVisible: (args) => names(args).length > 0,
    execute: (args) => (names(args).length ? comparisons.open(args as any) : lists.open({})),
  });
  for (const [command, action, verb, open] of [
    [ids.stopRun, "stop", "Stop", (run: RunEntry) => run.active],
    [ids.resumeRun, "resume", "Resume", (run: RunEntry) => !run.active && toneOf(run) !== "good"],
  ] as const)
    commands.addCommand(command, {
      label: `${verb} Run...`,
      execute: async (args) => {
        const name = text(args, "name") || (await choose(watch.runs.filter(open), verb));
        if (name) await act(name, action);
      },
    });
  commands.addCommand(ids.tensorBoard, {
    label: "TensorBoard",
    caption: "Open TensorBoard with the runs of this server",
    icon: tensorBoardIcon,
    execute: (args) => boards.open(args as any),
  });
  commands.addCommand(ids.models, {
    label: "Try a model",
    caption: "Generate text with the model of a run",
    icon: modelsIcon,
    execute: (args) => models.open(args as any),
  });

  const list = runsView(server, host, true);
  const sidebar = makeSidebar(list, {
    newRun: () => host.openForm(),
    openRuns: host.openRuns,
    tensorBoard: () => host.openTensorBoard(),
    refresh: () => {
      list.look();
      watch.refresh();
    },
  });
  shell.add(sidebar, "left", { rank: 350 });

  if (restorer) {
    restorer.add(sidebar, SIDEBAR_ID);
    [runs, lists, forms, comparisons, boards, models].forEach((tabs) => tabs.restore(restorer));
  }
  const offered = [ids.showRuns, ids.openRuns, ids.openRun, ids.newRun, ids.stopRun, ids.resumeRun, ids.tensorBoard];
  [...offered, ids.models].forEach((command) => palette?.addItem({ command, category: CATEGORY }));
  [ids.newRun, ids.openRuns, ids.tensorBoard, ids.models].forEach((command, rank) =>
    launcher?.add({ command, args: { isLauncher: true }, category: CATEGORY, rank }),
  );
  if (launcher) firstInLaunchers(shell);
  if (running) addToRunning(running, watch, host, (name) => void act(name, "stop"));
  const status = new Status(watch, () => shell.activateById(SIDEBAR_ID));
  if (bar) status.addTo(bar);

  if (linked.length) void app.restored.then(() => (linked.length > 1 ? host.openCompare(linked) : host.openRun(linked[0])));

  let notifyWhen = "ended";
  watch.ended.connect((_, run) => {
    const bad = toneOf(run) === "bad";
    if (notifyWhen === "never" || (notifyWhen === "failed" && !bad)) return;
    const kind = bad ? "error" : toneOf(run) === "good" ? "success" : "info";
    notify(`${run.name}: ${run.state}${run.cause ? `, ${run.cause}` : ""}`, kind, () => host.openRun(run.name));
  });

  const begin = (settings: ISettingRegistry.ISettings | null) => {
    const read = (key: string) => settings?.get(key).composite;
    notifyWhen = String(read("notifyWhen") ?? "ended");
    status.wanted = read("showStatus") !== false;
    watch.start(Number(read("refreshSeconds") ?? 5));
  };
  const loaded = registry ? registry.load(PLUGIN) : Promise.reject();
  void loaded.then(
    (settings) => {
      begin(settings);
      settings.changed.connect(begin);
    },
    () => begin(null),
  );
}

/** Return the title of a comparison's tab, which has space for two names. */
function comparedWords(names: string[]): string {
  return names.length > 2 ? `Compare ${names[0]} and ${names.length - 1} more` : `Compare ${names.join(", ")}`;
}

/** Let the user choose a run, with `verb` in the title. Resolves to "" if the user chose none, or if `runs` is empty. */
async function choose(runs: readonly RunEntry[], verb: string): Promise<string> {
  const items = runs.map((run) => run.name);
  if (!items.length) {
    notify(`There is no run to ${verb.toLowerCase()}.`, "info");
    return "";
  }
  return (await InputDialog.getItem({ title: `${verb} which run?`, items })).value ?? "";
}

export default plugin;
