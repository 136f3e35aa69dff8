// The list of runs: its style sheet.

export const RUNS_CSS = `
.nbtrain-runs{position:relative;padding:4px 14px 10px;max-width:1600px}
.nbtrain-runs.nbt-compact{padding:4px 10px 10px}
.nbtrain-runs .nbt-tools{margin:4px 0 6px}
.nbtrain-runs .nbt-chosen{padding:4px 8px;border-radius:6px;background:var(--nbt-soft)}
.nbtrain-runs .nbt-word{color:var(--nbt-dim);font-size:12px}
.nbtrain-runs .nbt-note{font-size:12px;margin:2px 0 6px;overflow-wrap:anywhere}
.nbtrain-runs .nbt-note:empty{display:none}
.nbtrain-runs .nbt-note.nbt-error{color:var(--nbt-failed)}
.nbt-root.nbtrain-runs td,.nbt-root.nbtrain-runs th{padding:4px 14px 4px 0;vertical-align:top}
.nbt-root.nbtrain-runs tbody tr{border-bottom:1px solid color-mix(in srgb,var(--nbt-line) 55%,transparent)}
.nbt-root.nbtrain-runs tbody tr.nbt-run:hover,.nbt-root.nbtrain-runs tbody tr.nbt-run:focus-within{
 background:color-mix(in srgb,var(--nbt-soft) 40%,var(--nbt-bg))}
.nbt-root.nbtrain-runs .nbt-pick{width:1px;padding:2px 4px 2px 0}
.nbt-root.nbtrain-runs .nbt-pick label{display:grid;place-items:center;width:24px;height:24px}
.nbt-root.nbtrain-runs .nbt-pick input{margin:0;display:block}
.nbt-root.nbtrain-runs .nbt-num{text-align:right}
.nbt-root.nbtrain-runs th.nbt-num button{padding:0 0 0 12px}
.nbt-root.nbtrain-runs th.nbt-num button::after{right:auto;left:1px}
.nbt-root.nbtrain-runs button.nbt-open{border:0;padding:0;font-size:13px;font-weight:600;text-align:left;
 white-space:normal;overflow-wrap:anywhere;color:color-mix(in srgb,var(--jp-content-link-color,var(--nbt-a)) 85%,var(--nbt-fg))}
.nbt-root.nbtrain-runs button.nbt-open:hover{background:transparent;text-decoration:underline}
.nbt-root.nbtrain-runs tr.nbt-sweep td{background:color-mix(in srgb,var(--nbt-soft) 60%,var(--nbt-bg))}
.nbt-root.nbtrain-runs tr.nbt-sweep .nbt-tools{margin:0;white-space:normal}
.nbt-root.nbtrain-runs button.nbt-fold{border:0;padding:0 4px 0 0;font-weight:600;color:var(--nbt-fg);
 overflow-wrap:anywhere;white-space:normal;text-align:left;background:transparent}
.nbtrain-runs .nbt-sparkline{display:block;margin-top:1px}
.nbt-root.nbtrain-runs td[data-column=curve]{min-width:84px}
.nbt-root.nbtrain-runs th[data-column=curve]{vertical-align:middle}
.nbtrain-runs .nbt-sparkline path{fill:none;stroke:var(--nbt-a);stroke-width:1.4;stroke-linejoin:round}
.nbtrain-runs .nbt-tags{display:flex;flex-wrap:wrap;gap:3px;margin-top:2px}
.nbtrain-runs .nbt-tags:empty,.nbtrain-runs .nbt-about:empty{display:none}
.nbt-root.nbtrain-runs button.nbt-tag{border-radius:9px;padding:0 8px;font-size:11px;line-height:16px;min-height:24px;
 color:var(--nbt-fg);background:color-mix(in srgb,var(--nbt-a) 12%,transparent);
 white-space:normal;overflow-wrap:anywhere;text-align:left;
 border-color:color-mix(in srgb,var(--nbt-a) 40%,transparent)}
.nbt-root.nbtrain-runs .nbt-name-cell{min-width:min(240px,20cqw);white-space:normal}
.nbtrain-runs .nbt-about{font-size:12px;color:var(--nbt-dim);overflow:hidden;display:-webkit-box;
 -webkit-line-clamp:2;-webkit-box-orient:vertical;overflow-wrap:anywhere}
.nbtrain-runs .nbt-about.nbt-error{color:var(--nbt-failed)}
.nbt-root.nbtrain-runs th[data-place]:not([data-place=""]) button::before{content:attr(data-place)}
.nbtrain-runs .nbt-offers{display:grid}
.nbtrain-runs .nbt-removal{display:flex;flex-wrap:wrap;gap:4px 12px;flex:1 1 100%;border:1px solid var(--nbt-line);
 border-radius:4px;font-size:12px}
.nbt-fills.nbtrain-runs{max-width:none;height:100%;display:flex;flex-direction:column}
.nbt-fills.nbtrain-runs .nbt-scroll{overflow:auto;min-height:120px}
.nbt-fills.nbtrain-runs thead th,.nbt-fills.nbtrain-runs thead td{position:sticky;top:0;z-index:2;
 background:var(--nbt-bg);box-shadow:inset 0 -1px var(--nbt-line)}
.nbt-root.nbtrain-runs thead td{border-bottom:1px solid var(--nbt-line)}
.nbtrain-runs .nbt-under{display:none}
.nbtrain-runs .nbt-track{height:4px;border-radius:2px;margin-top:3px;background:var(--nbt-line);
 overflow:hidden;min-width:70px}
.nbtrain-runs .nbt-track i{display:block;height:100%;width:0;background:var(--nbt-a)}
.nbt-root.nbtrain-runs .nbt-row-acts{padding-right:2px;text-align:right}
.nbt-root.nbtrain-runs td.nbt-row-acts{position:sticky;right:0;padding-left:8px;white-space:nowrap;background:var(--nbt-bg)}
.nbt-root.nbtrain-runs tr.nbt-run:is(:hover,:focus-within) td.nbt-row-acts{
 background:color-mix(in srgb,var(--nbt-soft) 40%,var(--nbt-bg))}
.nbt-root.nbtrain-runs .nbt-row-acts button{padding:1px 8px;min-height:24px;min-width:24px}
.nbt-root.nbtrain-runs .nbt-tools button,.nbt-root.nbtrain-runs .nbt-pager button{min-height:24px;min-width:24px}
.nbt-root.nbtrain-runs .nbt-row-menu{border-color:transparent;color:var(--nbt-dim)}
.nbt-root.nbtrain-runs .nbt-row-menu:hover{color:var(--nbt-fg)}
.nbtrain-runs .nbt-extra{display:flex;flex-wrap:wrap;align-items:center;gap:6px 8px;padding:8px 12px;
 margin:2px 0 6px;
 border:1px solid var(--nbt-b);border-radius:6px;background:var(--nbt-bg);white-space:normal}
.nbtrain-runs .nbt-extra.nbt-editor{border-color:var(--nbt-line)}
.nbtrain-runs .nbt-extra>span{flex:1 1 220px}
.nbtrain-runs .nbt-extra label{display:grid;gap:2px;flex:1 1 240px;font-size:12px;color:var(--nbt-dim)}
.nbt-root.nbtrain-runs .nbt-extra input,.nbt-root.nbtrain-runs .nbt-extra textarea{width:100%;max-width:none;
 font:inherit;font-size:12px;color:var(--nbt-fg);background:var(--nbt-bg);border:1px solid var(--nbt-line);
 border-radius:4px;padding:3px 6px}
.nbtrain-runs .nbt-extra .nbt-removal label{display:inline-flex;flex:none;min-height:24px}
.nbt-root.nbtrain-runs .nbt-extra .nbt-removal input{width:auto}
.nbtrain-runs .nbt-extra p{flex-basis:100%;margin:0}
.nbt-root .nbt-run-menu{position:fixed;inset:auto;margin:0;gap:2px;min-width:180px;padding:4px;
 color:var(--nbt-fg);background:var(--nbt-bg);border:1px solid var(--nbt-line);border-radius:5px;
 box-shadow:0 4px 14px rgba(0,0,0,.22)}
.nbt-root .nbt-run-menu:popover-open{display:grid}
.nbt-root .nbt-run-menu button{border:0;text-align:left;padding:3px 10px}
.nbtrain-runs.nbt-compact .nbt-track{max-width:none}
.nbt-root.nbtrain-runs.nbt-compact td.nbt-wide{padding-right:2px}
.nbtrain-runs .nbt-first{display:flex;align-items:flex-start;gap:8px}
.nbtrain-runs .nbt-first .nbt-open{flex:1;min-width:0;margin-top:2px}
.nbtrain-runs.nbt-compact .nbt-row-acts{flex:none;white-space:nowrap}
.nbtrain-runs .nbt-line{display:flex;flex-wrap:wrap;align-items:center;gap:2px 10px;font-size:12px;
 color:var(--nbt-dim)}
.nbtrain-runs .nbt-line b{color:var(--nbt-fg);font-weight:600}
.nbtrain-runs.nbt-compact input[type=search]{flex:1 1 100%;max-width:none}
.nbtrain-runs.nbt-compact select{flex:1 1 112px;min-width:0;max-width:none}
.nbtrain-runs:not(.nbt-compact) input[type=search]{min-width:190px}
.nbtrain-runs:not(.nbt-compact) select{max-width:170px}
@container (max-width:1100px){.nbtrain-runs:not(.nbt-own-columns) [data-column=validation_loss]{display:none}}
@container (max-width:1080px){.nbtrain-runs:not(.nbt-own-columns) [data-column=about]{display:none}
 .nbtrain-runs:not(.nbt-compact) .nbt-under{display:-webkit-box}
 .nbt-root.nbtrain-runs:not(.nbt-compact) .nbt-name-cell{width:100%}}
@container (max-width:860px){.nbtrain-runs:not(.nbt-own-columns) [data-column=curve]{display:none}}
@container (max-width:1010px){.nbtrain-runs:not(.nbt-own-columns) [data-column=backend]{display:none}}
@container (max-width:720px){.nbtrain-runs:not(.nbt-own-columns) [data-column=eta_seconds]{display:none}
 .nbt-root.nbtrain-runs td,.nbt-root.nbtrain-runs th{padding-right:10px}}
@container (max-width:640px){.nbtrain-runs:not(.nbt-own-columns) [data-column=created]{display:none}}
@container (max-width:540px){.nbtrain-runs:not(.nbt-own-columns) [data-column=loss],.nbt-root.nbtrain-runs .nbt-row-acts .nbt-clone{display:none}}
`;
