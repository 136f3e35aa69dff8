// Puts nbtrain's section first in every launcher, both on the screen and in the order of the Tab key.

import type { ILabShell, JupyterFrontEnd } from "@jupyterlab/application";

import { CATEGORY } from "./names";

const SECTION = ".jp-Launcher-section";

/** Move nbtrain's section before the other sections of a launcher. JupyterLab sorts them differently. */
function putFirst(launcher: Element): void {
  const card = launcher.querySelector(`.jp-LauncherCard[data-category="${CATEGORY}"]`);
  const own = card?.closest(SECTION), first = launcher.querySelector(SECTION);
  if (own && first && first !== own) first.before(own);
}

/** Keep nbtrain's section first in the launchers of the main area, even after they are drawn again. */
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
