// The left sidebar: buttons above the list of runs.

import { Toolbar, ToolbarButton, refreshIcon, type LabIcon } from "@jupyterlab/ui-components";
import { PanelLayout, Widget } from "@lumino/widgets";

import { newRunIcon, runsIcon, tensorBoardIcon } from "./icons";
import { SIDEBAR_ID } from "./names";

export interface SidebarActions {
  newRun(): void;
  openRuns(): void;
  tensorBoard(): void;
  refresh(): void;
}

export function makeSidebar(list: Widget, actions: SidebarActions): Widget {
  const sidebar = new Widget();
  sidebar.id = SIDEBAR_ID;
  sidebar.title.icon = runsIcon;
  sidebar.title.caption = "nbtrain Runs";
  sidebar.addClass("nbtrain-Sidebar");
  sidebar.node.setAttribute("role", "region");
  sidebar.node.setAttribute("aria-label", "nbtrain Runs");
  const toolbar = new Toolbar();
  toolbar.node.setAttribute("aria-label", "nbtrain");
  const add = (name: string, icon: LabIcon, tooltip: string, onClick: () => void) =>
    toolbar.addItem(name, new ToolbarButton({ icon, tooltip, onClick }));
  add("new-run", newRunIcon, "New run...", actions.newRun);
  add("open-runs", runsIcon, "Show the runs in a tab", actions.openRuns);
  add("tensorboard", tensorBoardIcon, "Open TensorBoard with all runs", actions.tensorBoard);
  toolbar.addItem("room", Toolbar.createSpacerItem());
  add("refresh", refreshIcon, "Refresh the list of runs", actions.refresh);
  const layout = new PanelLayout();
  layout.addWidget(toolbar);
  layout.addWidget(list);
  sidebar.layout = layout;
  return sidebar;
}
