// The icons, in the colours of the theme (jp-icon3 is the class for icons of the sidebar).

import { LabIcon } from "@jupyterlab/ui-components";

const svg = (inside: string) =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">${inside}</svg>`;

/** A falling loss curve on its axes. */
export const runsIcon = new LabIcon({
  name: "nbtrain:runs",
  svgstr: svg(
    '<g class="jp-icon3" fill="#616161"><path d="M3 3h2v16h16v2H3z"/>' +
      '<path d="M6.6 4.5l1.9-.7c1.3 3.7 2.9 6 4.9 7.1 1.8 1 4 1.4 7.1 1.5v2c-3.4-.1-6-.6-8.1-1.8-2.5-1.4-4.4-4.1-5.8-8.1z"/></g>',
  ),
});

/** The curve with a plus: a new run. */
export const newRunIcon = new LabIcon({
  name: "nbtrain:new-run",
  svgstr: svg(
    '<g class="jp-icon3" fill="#616161"><path d="M3 3h2v16h9v2H3z"/>' +
      '<path d="M6.6 4.5l1.9-.7c1.3 3.7 2.9 6 4.9 7.1 1.3.7 2.7 1.1 4.6 1.3l-.2 2c-2.2-.2-3.9-.7-5.4-1.6-2.5-1.4-4.4-4.1-5.8-8.1z"/>' +
      '<path d="M18 15h2v3h3v2h-3v3h-2v-3h-3v-2h3z"/></g>',
  ),
});

/** Two curves: TensorBoard. */
export const tensorBoardIcon = new LabIcon({
  name: "nbtrain:tensorboard",
  svgstr: svg(
    '<g fill="none" stroke-linecap="round" stroke-linejoin="round">' +
      '<path d="M3.5 3v17.5H21" stroke="#7a828e" stroke-width="1.8"/>' +
      '<path d="M6.5 6c1.2 5.6 3 8.6 6 9.5 2.4.7 5 .9 8 1" stroke="#e8710a" stroke-width="2.2"/>' +
      '<path d="M6.5 10.5c2 4 4 4.5 6.5 3.5s4.5-5.5 7.5-6" stroke="#1976d2" stroke-width="1.6"/></g>',
  ),
});

/** Text in a speech bubble: a model that generates. */
export const modelsIcon = new LabIcon({
  name: "nbtrain:models",
  svgstr: svg(
    '<path class="jp-icon3" fill="#616161" d="M4 3h16a2 2 0 0 1 2 2v11a2 2 0 0 1-2 2h-9l-5 4v-4H4a2 2 0 0 1-2-2V5a2 2 0 0 1 ' +
      '2-2zm0 2v11h4v2l2.5-2H20V5zm2 2.5h12v2H6zm0 4h8v2H6z"/>',
  ),
});
