// The panel's style sheet, in the colours of JupyterLab's theme.

export const STYLE_ID = "nbtrain-panel-style";

export const CSS = `
.nbtrain-panel{--nbt-fg:var(--jp-ui-font-color1,#1f2328);--nbt-dim:var(--jp-ui-font-color2,#6b7280);
 --nbt-line:var(--jp-border-color2,#d8dce1);--nbt-soft:var(--jp-layout-color2,#f3f4f6);
 --nbt-bg:var(--jp-layout-color1,#fff);
 --nbt-a:var(--jp-brand-color1,#1976d2);--nbt-b:var(--jp-warn-color1,#e8710a);
 --nbt-good:var(--jp-success-color1,#2e9e4f);
 --nbt-bad:var(--jp-error-color1,#d32f2f);--nbt-mono:var(--jp-code-font-family,ui-monospace,monospace);
 box-sizing:border-box;width:100%;max-width:1120px;container-type:inline-size;color:var(--nbt-fg);
 background:var(--nbt-bg);
 border:1px solid var(--nbt-line);border-radius:8px;font:13px/1.45 var(--jp-ui-font-family,
 system-ui,sans-serif);
 font-variant-numeric:tabular-nums;overflow:hidden}
.nbtrain-panel{--nbt-c0:var(--nbt-a);--nbt-c1:var(--nbt-b);--nbt-c2:#2e9e4f;--nbt-c3:#9b6bd0;--nbt-c4:#b5654a;
 --nbt-c5:#d6569f;--nbt-c6:#0f9fb0;--nbt-c7:#9a9a1a}
.nbtrain-panel *{box-sizing:border-box}
.nbtrain-panel .nbt-head{display:flex;align-items:center;gap:10px;padding:10px 14px 8px}
.nbtrain-panel .nbt-light{width:10px;height:10px;border-radius:50%;background:var(--nbt-dim);flex:none}
.nbtrain-panel[data-state=RUNNING] .nbt-light{background:var(--nbt-good);animation:nbt-pulse 2s infinite}
.nbtrain-panel[data-state=SUCCEEDED] .nbt-light{background:var(--nbt-good)}
.nbtrain-panel[data-state=QUEUED] .nbt-light,.nbtrain-panel[data-state=STARTING] .nbt-light,
.nbtrain-panel[data-state=RESTARTING] .nbt-light{background:var(--nbt-b);animation:nbt-pulse 1s infinite}
.nbtrain-panel[data-state=FAILED] .nbt-light,.nbtrain-panel[data-state=LOST] .nbt-light{
 background:var(--nbt-bad)}
@keyframes nbt-pulse{50%{opacity:.35}}
@media(prefers-reduced-motion:reduce){.nbtrain-panel .nbt-light{animation:none!important}}
.nbtrain-panel .nbt-name{font-weight:600;font-size:15px}
.nbtrain-panel .nbt-state{font-weight:600;font-size:12px}
.nbtrain-panel .nbt-sub{color:var(--nbt-dim);font-size:12px;flex:1;min-width:0;overflow:hidden;
 text-overflow:ellipsis;white-space:nowrap}
.nbtrain-panel button{font:inherit;font-size:12px;color:var(--nbt-fg);background:transparent;
 border:1px solid var(--nbt-line);
 border-radius:5px;padding:2px 10px;cursor:pointer}
.nbtrain-panel button:hover:not(:disabled){background:var(--nbt-soft)}
.nbtrain-panel button:disabled{opacity:.45;cursor:default}
.nbtrain-panel .nbt-stop{color:var(--nbt-bad);border-color:currentColor}
.nbtrain-panel .nbt-note{padding:0 14px 8px;font-size:12px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-note.nbt-error{color:var(--nbt-bad)}
.nbtrain-panel .nbt-note.nbt-alert{color:var(--nbt-b)}
.nbtrain-panel .nbt-note:empty{display:none}
.nbtrain-panel .nbt-bar{height:6px;margin:0 14px;border-radius:3px;background:var(--nbt-soft);overflow:hidden}
.nbtrain-panel .nbt-fill{height:100%;width:0;border-radius:3px;background:var(--nbt-a);transition:width .6s}
.nbtrain-panel[data-state=SUCCEEDED] .nbt-fill{background:var(--nbt-good)}
.nbtrain-panel[data-state=FAILED] .nbt-fill,.nbtrain-panel[data-state=LOST] .nbt-fill{
 background:var(--nbt-bad)}
.nbtrain-panel[data-state=CANCELLED] .nbt-fill{background:var(--nbt-dim)}
.nbtrain-panel .nbt-steps{display:flex;flex-wrap:wrap;gap:2px 18px;padding:5px 14px 10px;font-size:12px;
 color:var(--nbt-dim)}
.nbtrain-panel .nbt-steps b{color:var(--nbt-fg);font-weight:600}
.nbtrain-panel .nbt-steps .nbt-eta{margin-left:auto}
.nbtrain-panel .nbt-tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(126px,1fr));
 border-top:1px solid var(--nbt-line);overflow:hidden}
.nbtrain-panel .nbt-tile{padding:7px 14px 8px;min-width:0;margin:0 -1px -1px 0;border:solid var(--nbt-line);
 border-width:0 1px 1px 0}
.nbtrain-panel .nbt-tile span{display:block;font-size:11px;color:var(--nbt-dim);white-space:nowrap}
.nbtrain-panel .nbt-tile strong{font-size:16px;font-weight:600;white-space:nowrap}
.nbtrain-panel .nbt-tile small{font-size:11px;color:var(--nbt-dim);margin-left:3px;font-weight:400}
.nbtrain-panel .nbt-charts{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr);gap:1px;
 background:var(--nbt-line);
 position:relative;border-top:1px solid var(--nbt-line)}
.nbtrain-panel .nbt-chart{background:var(--nbt-bg);padding:8px 10px 4px 14px;min-width:0;position:relative}
.nbtrain-panel .nbt-chart:first-child{grid-row:span 2}
.nbtrain-panel .nbt-chart header{display:flex;gap:12px;font-size:11px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-chart header i{font-style:normal}
.nbtrain-panel .nbt-chart header i::before{content:"";display:inline-block;width:10px;height:2px;
 margin-right:5px;vertical-align:middle;background:var(--c)}
.nbtrain-panel .nbt-chart header output{margin-left:auto;color:var(--nbt-fg)}
.nbtrain-panel svg{display:block;width:100%;overflow:visible}
.nbtrain-panel svg text{fill:var(--nbt-dim);font-size:10px;font-family:inherit}
.nbtrain-panel .nbt-grid{stroke:var(--nbt-line);stroke-width:1;opacity:.7}
.nbtrain-panel .nbt-tabs{display:flex;gap:2px;align-items:center;padding:6px 10px 0;
 border-top:1px solid var(--nbt-line)}
.nbtrain-panel .nbt-tabs button{border:0;border-radius:0;border-bottom:2px solid transparent;padding:3px 8px;
 color:var(--nbt-dim)}
.nbtrain-panel .nbt-tabs button[aria-selected=true]{color:var(--nbt-fg);border-bottom-color:var(--nbt-a)}
.nbtrain-panel .nbt-tabs{flex-wrap:wrap}
.nbtrain-panel .nbt-room{flex:1}
.nbtrain-panel .nbt-tabs select{max-width:300px;font:inherit;font-size:12px;color:var(--nbt-fg);
 background:var(--nbt-bg);
 border:1px solid var(--nbt-line);border-radius:4px}
.nbtrain-panel[data-page=resources] .nbt-page,.nbtrain-panel[data-page=job] .nbt-page{height:auto;
 max-height:640px}
.nbtrain-panel[data-page=events] .nbt-page{height:240px}
.nbtrain-panel .nbt-usage{display:grid;gap:4px 14px;
 grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr))}
.nbtrain-panel .nbt-usage .nbt-chart,.nbtrain-panel .nbt-usage .nbt-chart:first-child{grid-row:auto;
 padding:4px 0}
.nbtrain-panel .nbt-usage header{height:18px;overflow:hidden;white-space:nowrap}
.nbtrain-panel .nbt-usage header output{flex:none;padding-left:6px;background:var(--nbt-bg)}
.nbtrain-panel .nbt-chart header b{color:var(--nbt-fg);font-weight:600}
.nbtrain-panel .nbt-chart header i.nbt-request::before{background:var(--nbt-good)}
.nbtrain-panel .nbt-chart header i.nbt-limit::before{background:var(--nbt-bad)}
.nbtrain-panel .nbt-bound{stroke-width:1.2;stroke-dasharray:5 4}
.nbtrain-panel .nbt-bound.nbt-request{stroke:var(--nbt-good)}
.nbtrain-panel .nbt-bound.nbt-limit{stroke:var(--nbt-bad)}
.nbtrain-panel h4{margin:12px 0 4px;font-size:12px;font-weight:600;color:var(--nbt-fg)}
.nbtrain-panel .nbt-details{margin:10px 0 2px}
.nbtrain-panel .nbt-details summary{cursor:pointer;font-size:12px;color:var(--nbt-dim);margin-bottom:4px}
.nbtrain-panel .nbt-filter{display:flex;align-items:center;gap:6px;font-size:12px;color:var(--nbt-dim);
 margin-bottom:4px}
.nbtrain-panel .nbt-filter input{margin:0}
.nbtrain-panel .nbt-empty{margin:8px 0;color:var(--nbt-dim)}
.nbtrain-panel .nbt-page{height:172px;overflow:auto;padding:6px 14px 10px;
 border-top:1px solid var(--nbt-line)}
.nbtrain-panel pre{margin:0;font:11.5px/1.5 var(--nbt-mono);color:var(--nbt-fg);background:transparent;
 white-space:pre}
.nbtrain-panel table{border-collapse:collapse;width:100%;font-size:12px;margin:0;table-layout:auto}
.nbtrain-panel th,.nbtrain-panel td{text-align:left;padding:2px 12px 2px 0;vertical-align:top;
 background:transparent;color:var(--nbt-fg);white-space:pre;border:0}
.nbtrain-panel th{color:var(--nbt-dim);font-weight:500;font-size:11px}
.nbtrain-panel td.nbt-wide{white-space:normal;width:100%}
.nbtrain-panel tr[data-kind=alert] td,.nbtrain-panel tr[data-kind=warning] td{color:var(--nbt-b)}
.nbtrain-panel tr[data-kind=error] td,.nbtrain-panel tr[data-kind=bad] td{color:var(--nbt-bad)}
.nbtrain-panel tr[data-kind=past] td{color:var(--nbt-dim)}
@container (max-width:620px){.nbtrain-panel .nbt-charts{grid-template-columns:minmax(0,1fr)}
 .nbtrain-panel .nbt-chart:first-child{grid-row:auto}}
`;
