// nbtrain's section comes first in every launcher, for the eye and for the Tab key.

import type { ILabShell, JupyterFrontEnd } from "@jupyterlab/application";

import { CATEGORY } from "./names";

const SECTION = ".jp-Launcher-section";

/** Move our section before the others of a launcher, which JupyterLab sorts by itself. */
function putFirst(launcher: Element): void {
  const card = launcher.querySelector(`.jp-LauncherCard[data-category="${CATEGORY}"]`);
  const own = card?.closest(SECTION), first = launcher.querySelector(SECTION);
  if (own && first && first !== own) first.before(own);
}

/** Keep our section first in the launchers of the main area, also after they are drawn again. */
export function firstInLaunchers(shell: JupyterFrontEnd.IShell): void {
  const watched = new WeakSet<Element>();
  const watch = () => {
    for (const widget of shell.widgets("main")) {
      const launcher = widget.node.querySelector(".jp-Launcher");
      if (!launcher || watched.has(launcher)) continue;
      watched.add(launcher);
      new MutationObserver(() => putFirst(launcher)).observe(launcher, { childList: true, subtree: true });
      putFirst(launcher);
    }
  };
  // Notebook 7 has no launcher and no such signal.
  (shell as unknown as Partial<ILabShell>).layoutModified?.connect(watch);
  watch();
}
