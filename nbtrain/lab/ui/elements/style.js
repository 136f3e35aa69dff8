// The style sheet of all views, in the colours of JupyterLab's theme. A view's root has the class nbt-root. Rules for a
// single view use the class of that view.

const CSS = `
.nbt-root{--nbt-fg:var(--jp-ui-font-color1,#1f2328);--nbt-dim:var(--jp-ui-font-color2,#6b7280);
 --nbt-line:var(--jp-border-color2,#d8dce1);--nbt-soft:var(--jp-layout-color2,#f3f4f6);
 --nbt-bg:var(--jp-layout-color1,#fff);
 --nbt-a:var(--jp-brand-color1,#1976d2);--nbt-b:var(--jp-warn-color1,#e8710a);
 --nbt-good:var(--jp-success-color1,#2e9e4f);
 --nbt-bad:var(--jp-error-color1,#d32f2f);--nbt-mono:var(--jp-code-font-family,ui-monospace,monospace);
 --nbt-c0:var(--nbt-a);--nbt-c1:var(--nbt-b);--nbt-c2:#2e9e4f;--nbt-c3:#9b6bd0;--nbt-c4:#b5654a;
 --nbt-c5:#d6569f;--nbt-c6:#0f9fb0;--nbt-c7:#9a9a1a;
 box-sizing:border-box;width:100%;container-type:inline-size;color:var(--nbt-fg);background:var(--nbt-bg);
 font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);font-variant-numeric:tabular-nums}
.nbt-root *{box-sizing:border-box}
.nbt-root [hidden]{display:none!important}
.nbt-root .nbt-unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.nbt-root :focus-visible{outline:2px solid var(--nbt-a);outline-offset:1px}
.nbt-root .nbt-page:focus-visible,.nbt-root .nbt-scroll:focus-visible,.nbt-root pre:focus-visible{
 outline-offset:-2px}
.nbt-root.nbt-root h4{margin:14px 0 4px;font-size:12px;font-weight:600;color:var(--nbt-fg)}
.nbt-root .nbt-padded{padding:4px 14px 12px}
.nbt-root .nbt-empty{margin:8px 0;color:var(--nbt-dim)}

.nbt-root :is(button,summary,input[type=range]){min-height:24px;min-width:24px}
.nbt-root button{font:inherit;font-size:12px;color:var(--nbt-fg);background:transparent;white-space:nowrap;
 border:1px solid var(--nbt-line);border-radius:5px;padding:2px 10px;cursor:pointer}
.nbt-root button:hover:not(:disabled){background:var(--nbt-soft)}
/* Dim text on the darker background of a hovered element has a contrast below 4.5. */
.nbt-root :is(.nbt-tablist,th,.nbt-hit) button:hover,.nbt-root summary:hover,.nbt-root .nbt-hit:hover *{
 color:var(--nbt-fg)}
.nbt-root button:disabled{opacity:.45;cursor:default}
.nbt-root .nbt-kill,.nbt-root .nbt-delete,.nbt-root .nbt-danger{color:var(--nbt-failed);
 border-color:currentColor}
.nbt-root .nbt-primary{color:var(--jp-ui-inverse-font-color1,#fff);background:var(--nbt-a);
 border-color:transparent}
.nbt-root .nbt-primary:hover:not(:disabled){background:var(--nbt-a);filter:brightness(1.1)}
.nbt-root select,.nbt-root input[type=search],.nbt-root input[type=text],.nbt-root input[type=number]{
 max-width:300px;font:inherit;font-size:12px;color:var(--nbt-fg);background:var(--nbt-bg);
 border:1px solid var(--nbt-line);border-radius:4px;padding:2px 6px;min-height:24px}
.nbt-root .nbt-field{display:inline-flex;align-items:center;min-height:24px;gap:4px;font-size:12px;color:var(--nbt-dim)}
.nbt-root .nbt-field input{margin:0}
.nbt-root .nbt-tools{display:flex;flex-wrap:wrap;align-items:center;gap:6px 8px;margin:4px 0}
.nbt-root .nbt-room{flex:1}

.nbt-root .nbt-pill{display:inline-flex;align-items:center;gap:6px;padding:1px 9px 1px 8px;
 border-radius:10px;
 font-size:11px;font-weight:600;line-height:18px;white-space:nowrap;color:var(--nbt-fg);
 background:color-mix(in srgb,var(--tone) 18%,transparent);
 border:1px solid color-mix(in srgb,var(--tone) 55%,transparent)}
.nbt-root .nbt-pill::before{content:"";width:8px;height:8px;border-radius:50%;background:var(--tone)}
.nbt-root .nbt-tone-live{--tone:var(--nbt-a)}
.nbt-root .nbt-tone-good{--tone:var(--nbt-good)}
.nbt-root .nbt-tone-wait{--tone:var(--nbt-b)}
.nbt-root .nbt-tone-bad{--tone:var(--nbt-bad)}
.nbt-root .nbt-tone-calm{--tone:var(--nbt-dim)}

.nbt-root.nbt-root table{border-collapse:collapse;width:100%;font-size:12px;margin:0;table-layout:auto}
.nbt-root.nbt-root th,.nbt-root.nbt-root td{text-align:left;padding:3px 14px 3px 0;vertical-align:top;
 background:transparent;
 color:var(--nbt-fg);white-space:pre;border:0}
.nbt-root.nbt-root tbody tr:nth-child(n){background:transparent}
.nbt-root.nbt-root thead th{border-bottom:1px solid var(--nbt-line)}
.nbt-root.nbt-root th,.nbt-root.nbt-root th button{color:var(--nbt-dim);font-weight:500;font-size:11px}
.nbt-root.nbt-root th button{border:0;padding:0 12px 0 0;position:relative}
.nbt-root.nbt-root th[aria-sort=ascending] button::after,
 .nbt-root.nbt-root th[aria-sort=descending] button::after{
 position:absolute;right:1px;content:"\\25b4"}
.nbt-root.nbt-root th[aria-sort=descending] button::after{content:"\\25be"}
.nbt-root.nbt-root td.nbt-wide{white-space:normal;width:100%;overflow-wrap:anywhere;padding-right:0}
.nbt-root.nbt-root .nbt-table td.nbt-wide{min-width:190px}
.nbt-root.nbt-root td.nbt-act{white-space:nowrap;width:1px}
.nbt-root.nbt-root tr:has(>td.nbt-act)>td{vertical-align:middle}
.nbt-root .nbt-act button,.nbt-root .nbt-act .nbt-menu>summary{border:1px solid var(--nbt-line);
 border-radius:5px;padding:0 9px;line-height:20px;color:var(--nbt-fg)}
.nbt-root.nbt-root .nbt-act .nbt-menu-list button{border:0}
.nbt-root.nbt-root .nbt-tools h4{margin:0 6px 0 0}
.nbt-root .nbt-tools .nbt-menu>summary{border:1px solid var(--nbt-line);border-radius:5px;padding:0 10px;line-height:22px;
 color:var(--nbt-fg)}
.nbt-root .nbt-act .nbt-menu-list{left:0;right:auto}
.nbt-root .nbt-scroll{overflow-x:auto}
.nbt-root .nbt-pager{display:flex;align-items:center;gap:8px;font-size:12px;color:var(--nbt-dim);
 margin:4px 0}
.nbt-root.nbt-root tr[data-kind=alert] td,.nbt-root.nbt-root tr[data-kind=warning] td{
 color:var(--nbt-warned)}
.nbt-root.nbt-root tr[data-kind=error] td,.nbt-root.nbt-root tr[data-kind=bad] td{color:var(--nbt-failed)}
.nbt-root.nbt-root tr[data-kind=past] td{color:var(--nbt-dim)}
.nbt-root{--nbt-warned:color-mix(in srgb,var(--nbt-b) 60%,var(--nbt-fg));
 --nbt-failed:color-mix(in srgb,var(--nbt-bad) 75%,var(--nbt-fg))}
.nbt-root.nbt-root .nbt-pairs th{width:1px;padding-right:18px}

.nbt-root .nbt-menu{position:relative;display:inline-block;font-size:12px}
.nbt-root .nbt-menu>summary{list-style:none;cursor:pointer;padding:0 6px;border-radius:4px;line-height:24px;
 text-align:center;color:var(--nbt-dim)}
.nbt-root .nbt-menu>summary::-webkit-details-marker{display:none}
.nbt-root .nbt-menu>summary:hover,.nbt-root .nbt-menu[open]>summary{background:var(--nbt-soft)}
.nbt-root .nbt-menu-list{position:absolute;right:0;z-index:5;display:grid;gap:2px;min-width:130px;
 padding:4px;
 max-height:320px;overflow:auto;background:var(--nbt-bg);border:1px solid var(--nbt-line);border-radius:5px;
 box-shadow:0 4px 14px rgba(0,0,0,.22)}
.nbt-root .nbt-table:has(.nbt-menu[open]) .nbt-scroll:has(.nbt-menu[open]){padding-bottom:140px}
.nbt-root .nbt-tools .nbt-menu-list{left:0;right:auto}
.nbt-root .nbt-menu-list button{border:0;text-align:left}
.nbt-root .nbt-menu-list label{padding:2px 8px}
.nbt-root .nbt-details{margin:10px 0 2px}
.nbt-root .nbt-details summary{cursor:pointer;font-size:12px;color:var(--nbt-dim);margin-bottom:4px}

.nbt-root .nbt-tabs{display:flex;flex-wrap:wrap;gap:2px 8px;align-items:center;padding:4px 10px 0;
 border-bottom:1px solid var(--nbt-line)}
.nbt-root .nbt-tablist{display:flex;flex-wrap:wrap;gap:2px}
.nbt-root .nbt-tablist button{border:0;border-radius:0;border-bottom:2px solid transparent;padding:4px 9px;
 color:var(--nbt-dim)}
.nbt-root .nbt-tablist button[aria-selected=true]{color:var(--nbt-fg);border-bottom-color:var(--nbt-a)}
.nbt-root.nbt-root pre{padding:0;margin:0;font:11.5px/1.5 var(--nbt-mono);color:var(--nbt-fg);
 background:transparent;white-space:pre}

.nbt-root .nbt-tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));overflow:hidden}
.nbt-root .nbt-tile{padding:7px 14px 8px;min-width:0;margin:0 -1px -1px 0;border:solid var(--nbt-line);
 border-width:0 1px 1px 0}
.nbt-root .nbt-tile span{display:block;font-size:11px;color:var(--nbt-dim);white-space:nowrap;
 overflow:hidden;
 text-overflow:ellipsis}
.nbt-root .nbt-overview>.nbt-tiles{border-bottom:1px solid var(--nbt-line);display:flex;flex-wrap:wrap}
.nbt-root .nbt-overview>.nbt-tiles>.nbt-tile{flex:1 0 calc(100%/var(--columns,4))}
.nbt-root .nbt-overview .nbt-tile strong{white-space:normal}
.nbt-root .nbt-tile strong{display:flex;flex-wrap:wrap;align-items:baseline;column-gap:5px;font-size:16px;
 font-weight:600;white-space:nowrap}
.nbt-root .nbt-tile strong.nbt-kind-bad{color:var(--nbt-failed);white-space:normal}
.nbt-root .nbt-tile strong.nbt-kind-tight{color:var(--nbt-warned);white-space:normal}
.nbt-root .nbt-tile small{font-size:11px;color:var(--nbt-dim);font-weight:400}

.nbt-root .nbt-chart{background:var(--nbt-bg);min-width:0;position:relative}
.nbt-root .nbt-chart-head{display:flex;align-items:flex-start;gap:8px;font-size:11px;color:var(--nbt-dim)}
.nbt-root .nbt-enlarge{border:0;padding:0 6px;color:var(--nbt-dim)}
.nbt-root .nbt-large{width:96vw;max-width:none;padding:8px 14px;color:var(--nbt-fg);background:var(--nbt-bg);
 border:1px solid var(--nbt-line);border-radius:8px}
.nbt-root .nbt-large::backdrop{background:rgba(0,0,0,.45)}
.nbt-root .nbt-large input[type=text]{width:90px}
.nbt-root .nbt-legend{display:flex;flex-wrap:wrap;gap:0 12px;flex:1;min-width:0}
.nbt-root .nbt-legend i{font-style:normal;overflow-wrap:anywhere;min-width:0}
.nbt-root .nbt-legend i::before{content:"";display:inline-block;width:10px;height:2px;margin-right:5px;
 vertical-align:middle;background:var(--c)}
.nbt-root .nbt-legend i.nbt-dashed::before{width:16px;background:repeating-linear-gradient(90deg,
 var(--c) 0 var(--dash,3px),transparent var(--dash,3px) calc(var(--dash,3px) + 2px))}
.nbt-root .nbt-legend b{color:var(--nbt-fg);font-weight:600}
.nbt-root .nbt-legend i.nbt-request::before{background:var(--nbt-good)}
.nbt-root .nbt-legend i.nbt-limit::before{background:var(--nbt-bad)}
.nbt-root .nbt-chart>svg{display:block;width:100%;overflow:visible;cursor:crosshair;touch-action:pan-y}
.nbt-root svg text{fill:var(--nbt-dim);font-size:10px;font-family:inherit}
.nbt-root svg .nbt-read{fill:var(--nbt-fg);font-size:11px;paint-order:stroke;stroke:var(--nbt-bg);
 stroke-width:4}
.nbt-root .nbt-grid{stroke:var(--nbt-line);stroke-width:1;opacity:.7}
.nbt-root .nbt-cross{stroke:var(--nbt-dim);stroke-width:1;stroke-dasharray:2 2}
.nbt-root .nbt-raw{stroke-width:1;opacity:.35}
.nbt-root .nbt-band{opacity:.16}
.nbt-root svg .nbt-end{fill:var(--nbt-fg);font-size:10px}
.nbt-root .nbt-end-mark{stroke-width:2}
.nbt-root .nbt-end-leader{stroke-width:1;stroke-dasharray:1 3;opacity:.7}
.nbt-root .nbt-gap{fill:var(--nbt-bad);opacity:.22}
.nbt-root svg .nbt-gap-label{fill:var(--nbt-failed);font-weight:600;paint-order:stroke;stroke:var(--nbt-bg);
 stroke-width:3}
.nbt-root .nbt-tip{position:absolute;z-index:4;pointer-events:none;padding:4px 8px;max-width:min(420px,80%);
 background:var(--nbt-bg);border:1px solid var(--nbt-line);border-radius:5px;font-size:11px;
 box-shadow:0 2px 8px rgba(0,0,0,.18)}
.nbt-root .nbt-tip b{font-weight:600;white-space:nowrap}
.nbt-root.nbt-root .nbt-tip table{width:auto;font-size:11px}
.nbt-root.nbt-root .nbt-tip :is(th,td){padding:1px 10px 0 0;white-space:nowrap}
.nbt-root.nbt-root .nbt-tip td:last-child{color:var(--nbt-dim);padding-right:0}
.nbt-root .nbt-tip th::before{content:"";display:inline-block;width:10px;height:3px;margin-right:5px;
 vertical-align:middle;background:var(--c)}
.nbt-root .nbt-zoom{fill:var(--nbt-a);opacity:.15}
.nbt-root .nbt-bound{stroke-width:1.2;stroke-dasharray:5 4}
.nbt-root .nbt-bound.nbt-request{stroke:var(--nbt-good)}
.nbt-root .nbt-bound.nbt-limit{stroke:var(--nbt-bad)}
.nbt-root .nbt-mark{stroke:var(--nbt-dim);stroke-width:1;stroke-dasharray:3 3;opacity:.8}
.nbt-root .nbt-flag{fill:var(--nbt-dim)}
.nbt-root .nbt-mark.nbt-restart,.nbt-root .nbt-mark.nbt-rollback{stroke:var(--nbt-b)}
.nbt-root .nbt-mark.nbt-nan{stroke:var(--nbt-bad)}
.nbt-root .nbt-flag.nbt-nan{fill:var(--nbt-bad)}
.nbt-root .nbt-flag.nbt-restart,.nbt-root .nbt-flag.nbt-rollback{fill:var(--nbt-b)}

.nbtrain-panel{max-width:1400px;border:1px solid var(--nbt-line);border-radius:8px;overflow:clip}
/* The buttons have a separate column or row, so that the length of a state's name does not move them. */
.nbtrain-panel .nbt-head{display:grid;grid-template-columns:minmax(0,1fr) auto;align-items:center;gap:6px 10px;
 padding:10px 14px 8px}
.nbtrain-panel .nbt-titles{display:flex;align-items:center;gap:10px;min-width:0;white-space:nowrap}
.nbtrain-panel .nbt-name{font-weight:600;font-size:15px;overflow:hidden;text-overflow:ellipsis;flex:0 1 auto}
.nbtrain-panel .nbt-sub{color:var(--nbt-dim);font-size:12px;flex:1 100 0;min-width:0;overflow:hidden;
 text-overflow:ellipsis;white-space:nowrap;container:nbt-sub/inline-size}
/* A few letters of it would say nothing. */
@container nbt-sub (max-width:64px){.nbtrain-panel .nbt-sub span{display:none}}
.nbtrain-panel .nbt-actions{display:flex;flex-wrap:wrap;gap:6px;justify-content:flex-end}
.nbtrain-panel .nbt-head [data-slot]{min-height:26px}
.nbtrain-panel .nbt-head [data-slot=pause]{min-width:76px}
.nbtrain-panel .nbt-head [data-slot=delete]{min-width:62px}
.nbt-root .nbt-clamp{overflow:hidden;display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:3;
 overflow-wrap:anywhere}
.nbt-root .nbt-clamp-open{display:block;max-height:40vh;overflow:auto}
.nbt-root .nbt-more{border:0;padding:2px 6px;min-height:24px;color:var(--nbt-dim);text-decoration:underline}
.nbtrain-panel .nbt-note{padding:0 14px 8px;font-size:12px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-note.nbt-error{color:var(--nbt-failed)}
.nbtrain-panel .nbt-note.nbt-alert{color:var(--nbt-warned)}
.nbtrain-panel .nbt-note:empty{display:none}
.nbtrain-panel .nbt-older{padding-top:8px}
.nbtrain-panel .nbt-asked{display:flex;flex-wrap:wrap;align-items:center;gap:8px;margin:0 14px 8px;
 padding:8px 12px;
 border:1px solid var(--nbt-b);border-radius:6px}
.nbtrain-panel .nbt-asked span{flex:1 1 260px}
.nbtrain-panel .nbt-failure{margin:0 14px 10px;padding:8px 12px;border:1px solid var(--nbt-bad);
 border-left-width:4px;
 border-radius:6px;background:color-mix(in srgb,var(--nbt-bad) 7%,transparent)}
.nbtrain-panel .nbt-failed{display:flex;align-items:center;gap:8px;justify-content:space-between}
.nbtrain-panel .nbt-advice{margin-top:4px}
.nbtrain-panel .nbt-failure .nbt-more{color:var(--nbt-fg)}
.nbtrain-panel .nbt-bar{height:6px;margin:0 14px;border-radius:3px;background:var(--nbt-soft);
 overflow:hidden}
.nbtrain-panel .nbt-fill{height:100%;transform:scaleX(0);transform-origin:0 0;background:var(--nbt-a)}
.nbtrain-panel[data-state=SUCCEEDED] .nbt-fill{background:var(--nbt-good)}
.nbtrain-panel[data-state=FAILED] .nbt-fill,.nbtrain-panel[data-state=LOST] .nbt-fill{
 background:var(--nbt-bad)}
.nbtrain-panel[data-state=CANCELLED] .nbt-fill{background:var(--nbt-dim)}
.nbtrain-panel .nbt-steps{display:flex;flex-wrap:wrap;gap:2px 18px;padding:5px 14px 8px;font-size:12px;
 color:var(--nbt-dim)}
.nbtrain-panel .nbt-steps b{color:var(--nbt-fg);font-weight:600}
.nbtrain-panel .nbt-steps .nbt-eta{margin-left:auto}
.nbtrain-panel .nbt-charts{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr);gap:1px;
 background:var(--nbt-line);border-bottom:1px solid var(--nbt-line)}
.nbtrain-panel .nbt-charts .nbt-chart{padding:8px 10px 4px 12px}
.nbtrain-panel .nbt-charts .nbt-chart:first-child{grid-row:span 2}
.nbtrain-panel .nbt-first-column{min-width:0}
.nbtrain-panel .nbt-facts{min-width:0}
.nbt-root.nbtrain-panel .nbt-facts .nbt-table td.nbt-wide{min-width:100px}
.nbt-root .nbt-life-bar{display:flex;height:14px;border-radius:3px;overflow:hidden;background:var(--nbt-soft)}
.nbt-root .nbt-life-bar span{flex:none;min-width:1px}
.nbt-root .nbt-life-ends{display:flex;justify-content:space-between;gap:10px;font-size:11px;color:var(--nbt-dim)}
.nbt-root .nbt-life-legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:11px;color:var(--nbt-dim)}
.nbt-root .nbt-life-legend b{font-weight:600;color:var(--nbt-fg)}
.nbt-root .nbt-life-legend i{display:inline-block;width:10px;height:10px;margin-right:5px;border-radius:2px;
 vertical-align:-1px}
.nbt-root .nbt-life-waiting{background:var(--nbt-line)}
.nbt-root .nbt-life-tuning{background:#b5654a}
.nbt-root .nbt-life-starting{background:#8f8f18}
.nbt-root .nbt-life-building{background:var(--nbt-c3)}
.nbt-root .nbt-life-loading{background:var(--nbt-c6)}
.nbt-root .nbt-life-training{background:var(--nbt-a)}
.nbt-root .nbt-life-validating{background:var(--nbt-c5)}
.nbt-root .nbt-life-saving{background:var(--nbt-good)}
.nbt-root .nbt-life-restarting{background:var(--nbt-bad)}
.nbt-root .nbt-life-paused{background:var(--nbt-b)}
.nbtrain-panel .nbt-config-sections summary{cursor:pointer;min-height:24px;padding:2px 0;font-size:12px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-config-sections summary b{color:var(--nbt-fg);font-weight:600}
.nbtrain-panel .nbt-config-sections details>table{margin-left:14px;width:calc(100% - 14px)}
.nbtrain-panel .nbt-config-sections{max-width:900px}
.nbt-root.nbtrain-panel .nbt-config-sections .nbt-pairs th{width:min(250px,40cqw);white-space:normal;
 overflow-wrap:anywhere;font-size:12px;vertical-align:middle}
.nbt-root.nbtrain-panel .nbt-config-sections code{font:11.5px/1.5 var(--nbt-mono);color:var(--nbt-fg);background:transparent}
.nbt-root.nbtrain-panel .nbt-config-sections code.nbt-differs{font-weight:700}
.nbtrain-panel .nbt-config-sections small{color:var(--nbt-dim);font-size:11px}
.nbtrain-panel .nbt-strip-summary{font-size:12px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-strip-cells{display:flex;flex-wrap:wrap;gap:5px 8px;margin-bottom:10px}
/* A group is a machine or pod. */
.nbtrain-panel .nbt-strip-group{display:flex;flex-wrap:wrap;gap:1px;padding-left:3px;border-left:2px solid var(--nbt-line)}
.nbt-root.nbtrain-panel .nbt-cell{--tone:var(--nbt-dim);width:25px;height:24px;padding:0;border-radius:3px;
 font-size:10px;text-align:center;overflow:hidden;background:color-mix(in srgb,var(--tone) 26%,var(--nbt-bg));
 border:1px solid color-mix(in srgb,var(--tone) 65%,transparent)}
.nbt-root.nbtrain-panel .nbt-cell b{font-weight:500}
.nbt-root.nbtrain-panel .nbt-cell:hover{background:color-mix(in srgb,var(--tone) 40%,var(--nbt-bg))}
.nbt-root.nbtrain-panel .nbt-cell.nbt-tone-live{--tone:var(--nbt-a)}
.nbt-root.nbtrain-panel .nbt-cell.nbt-tone-good{--tone:var(--nbt-good)}
.nbt-root.nbtrain-panel .nbt-cell.nbt-tone-wait{--tone:var(--nbt-b)}
.nbt-root.nbtrain-panel .nbt-cell.nbt-tone-bad{--tone:var(--nbt-bad)}
.nbt-root.nbtrain-panel .nbt-cell.nbt-tone-bad b{font-weight:700}
.nbt-root.nbtrain-panel .nbt-cell-level{--tone:var(--nbt-b);
 background:color-mix(in srgb,var(--nbt-b) var(--level),var(--nbt-bg))}
.nbt-root.nbtrain-panel .nbt-cell-unknown{border-style:dashed;background:transparent}
.nbt-root.nbtrain-panel .nbt-cell[aria-pressed=true]{outline:2px solid var(--nbt-fg);outline-offset:0}
.nbt-root.nbtrain-panel .nbt-strip-large .nbt-cell{width:auto;min-width:92px;height:auto;padding:3px 10px;font-size:12px;
 text-align:left}
.nbtrain-panel .nbt-strip-large small{display:block;font-size:11px}
.nbtrain-panel .nbt-strip-detail{margin:8px 0;padding:2px 10px 8px;border:1px solid var(--nbt-line);border-radius:5px}
.nbtrain-panel .nbt-strip-detail .nbt-clamped{font-size:12px}
.nbtrain-panel .nbt-strip-failed .nbt-clamped{color:var(--nbt-failed)}
.nbtrain-panel .nbt-reading{margin:0;padding:6px 14px;border-bottom:1px solid var(--nbt-line)}
.nbtrain-panel .nbt-usage{display:grid;gap:10px 18px;padding-top:6px;
 grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr))}
.nbtrain-panel .nbt-page{max-height:640px;overflow:auto}
.nbtrain-panel[data-page=logs] .nbt-page{overflow:hidden}
.nbtrain-panel .nbt-logs{display:flex;flex-direction:column;height:min(600px,70vh);padding:4px 14px 10px}
.nbt-root.nbtrain-panel .nbt-logs pre{flex:1;min-height:140px;overflow:auto;padding:4px 6px;
 border:1px solid var(--nbt-line);border-radius:4px}
.nbtrain-panel .nbt-logs pre.nbt-wraps{white-space:pre-wrap;overflow-wrap:anywhere}
.nbtrain-panel .nbt-line{display:block;width:max-content;min-width:100%;cursor:default}
.nbtrain-panel .nbt-wraps .nbt-line{width:auto;padding-left:calc(var(--digits,2ch) + 14px);
 text-indent:calc(-1*(var(--digits,2ch) + 14px))}
/* A line's number is not part of its text: it is neither selected nor copied. */
.nbtrain-panel .nbt-line::before{content:attr(data-line);display:inline-block;position:sticky;left:-6px;
 width:calc(var(--digits,2ch) + 14px);padding:0 8px 0 6px;text-align:right;text-indent:0;color:var(--nbt-dim);
 background:var(--nbt-bg);cursor:pointer}
.nbtrain-panel .nbt-level-error{color:var(--nbt-failed)}
.nbtrain-panel .nbt-level-warning{color:var(--nbt-warned)}
.nbtrain-panel .nbt-level-debug{color:var(--nbt-dim)}
.nbtrain-panel .nbt-line.nbt-current{color:var(--nbt-fg);background:color-mix(in srgb,var(--nbt-a) 16%,var(--nbt-bg))}
.nbtrain-panel .nbt-line.nbt-current::before{background:inherit;color:var(--nbt-fg);font-weight:600}
.nbt-root mark{color:var(--nbt-fg);background:color-mix(in srgb,var(--nbt-b) 38%,var(--nbt-bg));border-radius:2px}
.nbtrain-panel .nbt-go-line{width:76px}
.nbtrain-panel .nbt-wrong{margin:0 0 4px;font-size:12px;color:var(--nbt-failed)}
.nbt-root input[aria-invalid=true]{border-color:var(--nbt-bad)}
.nbtrain-panel .nbt-hits>.nbt-tools{position:sticky;top:0;background:var(--nbt-bg);margin:0;padding:3px 0}
.nbt-root .nbt-hit[aria-current=true] *{color:var(--nbt-fg)}
.nbt-root .nbt-hit[aria-current=true]{background:color-mix(in srgb,var(--nbt-a) 16%,var(--nbt-bg))}
.nbtrain-panel .nbt-traceback{position:relative;margin:0 0 8px;padding:6px 10px;border:1px solid var(--nbt-bad);
 border-radius:5px;flex:0 1 auto;min-height:60px;overflow:auto}
.nbtrain-panel .nbt-traceback>button{position:absolute;top:4px;right:8px;background:var(--nbt-bg)}
.nbtrain-panel .nbt-traceback summary{cursor:pointer;font-weight:600;font-size:12px}
.nbt-root.nbtrain-panel .nbt-logs .nbt-traceback pre{border:0;min-height:0;max-height:none;padding:4px 0;
 white-space:pre-wrap;overflow-wrap:anywhere}
.nbtrain-panel .nbt-hits{flex:0 1 auto;max-height:45%;overflow:auto;margin-bottom:8px;
 border:1px solid var(--nbt-line);border-radius:4px;padding:2px 8px}
.nbt-root.nbt-root .nbt-hits ol{margin:0;padding:0;list-style:none}
.nbtrain-panel .nbt-hit{display:flex;gap:10px;width:100%;border:0;padding:1px 4px;text-align:left}
.nbtrain-panel .nbt-hit code{flex:1;min-width:0;font:11.5px/1.5 var(--nbt-mono);background:transparent;
 color:var(--nbt-fg);overflow:hidden;text-overflow:ellipsis;white-space:pre}
.nbtrain-panel .nbt-place{color:var(--nbt-dim)}
.nbtrain-panel .nbt-plan .nbt-tiles{margin:6px 0 2px;border:1px solid var(--nbt-line);border-radius:6px}
.nbtrain-panel .nbt-plan .nbt-tile strong{white-space:normal}
.nbtrain-panel .nbt-plan-tables{display:grid;gap:2px 30px;align-items:start;
 grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr))}
.nbt-root.nbtrain-panel .nbt-plan .nbt-pairs th{min-width:130px;white-space:pre}
.nbtrain-panel .nbt-plan ul{margin:4px 0;padding-left:18px;font-size:12px}
@container (max-width:640px){.nbtrain-panel .nbt-steps .nbt-eta{margin-left:0}
 .nbtrain-panel .nbt-head{grid-template-columns:minmax(0,1fr)}
 .nbtrain-panel .nbt-steps{gap:2px 14px}
 .nbtrain-panel .nbt-charts{grid-template-columns:minmax(0,1fr)}
 .nbtrain-panel .nbt-charts .nbt-chart:first-child{grid-row:auto}}
@container (max-width:520px){.nbtrain-panel .nbt-head .nbt-actions{gap:4px}
 .nbt-root.nbtrain-panel .nbt-head .nbt-actions button{padding:2px 6px}}

@container (min-width:1000px){.nbtrain-panel .nbt-columns{display:grid;
  grid-template-columns:minmax(0,2fr) minmax(0,1fr)}
 .nbtrain-panel .nbt-facts{border-left:1px solid var(--nbt-line)}}

.nbtrain-compare .nbt-chip-list,.nbtrain-compare .nbt-reasons{display:flex;flex-wrap:wrap;gap:6px 8px;margin:0;
 padding:0;list-style:none}
.nbtrain-compare .nbt-reasons{display:block;font-size:12px;color:var(--nbt-warned)}
.nbtrain-compare .nbt-chip{display:inline-flex;align-items:center;min-height:26px;border:1px solid var(--nbt-line);
 border-radius:5px}
.nbt-root.nbtrain-compare .nbt-chip button{border:0;min-height:24px;padding:2px 7px}
.nbtrain-compare .nbt-chip-name{padding:2px 2px;font-size:12px;overflow-wrap:anywhere}
.nbtrain-compare .nbt-look i{display:block;width:22px;height:3px;background:var(--c)}
.nbtrain-compare .nbt-look i.nbt-dashed{background:repeating-linear-gradient(90deg,var(--c) 0 var(--dash),
 transparent var(--dash) calc(var(--dash) + 3px))}
.nbtrain-compare .nbt-hidden-run .nbt-chip-name{text-decoration:line-through;color:var(--nbt-dim)}
.nbtrain-compare .nbt-hidden-run .nbt-look i{background:var(--nbt-line)}
.nbtrain-compare .nbt-offers{display:grid}
.nbt-root.nbtrain-compare .nbt-scroll td:first-child,.nbt-root.nbtrain-compare .nbt-scroll th:first-child{
 position:sticky;left:0;background:var(--nbt-bg)}
.nbtrain-compare td.nbt-best{font-weight:700}
.nbtrain-compare td.nbt-best::before{content:"\\2605";margin-right:3px;color:var(--nbt-good)}
.nbtrain-compare td small{font-weight:400;color:var(--nbt-dim)}
.nbtrain-compare td small.nbt-better{color:color-mix(in srgb,var(--nbt-good) 60%,var(--nbt-fg))}
.nbtrain-compare td small.nbt-worse{color:var(--nbt-failed)}
.nbtrain-compare input[type=range]{width:110px}
.nbt-root.nbtrain-compare td:not(:first-child),.nbt-root.nbtrain-compare th:not(:first-child){text-align:right}
.nbt-root.nbtrain-compare table{width:auto}
.nbt-root.nbt-root.nbtrain-compare .nbt-table td.nbt-wide{width:auto;min-width:0;padding-right:14px;white-space:nowrap}
.nbtrain-compare .nbt-published{display:contents}
.nbtrain-compare .nbt-error{color:var(--nbt-failed);font-size:12px;overflow-wrap:anywhere}
.nbtrain-compare .nbt-usage{display:grid;gap:8px 16px;
 grid-template-columns:repeat(auto-fit,minmax(min(380px,100%),1fr))}

/* In a separate tab, the panel fills the tab, and its page scrolls. */
.nbt-fills.nbtrain-panel{max-width:none;height:100%;display:flex;flex-direction:column;border:0;
 border-radius:0}
.nbt-fills .nbt-page{max-height:none;flex:1;min-height:0}
.nbt-fills .nbt-logs{height:100%}
`;

/** Put a style sheet into the page, once. */
export function addStyle(id = "nbtrain-style", text = CSS) {
  if (document.getElementById(id)) return;
  const style = document.createElement("style");
  style.id = id;
  style.textContent = text;
  document.head.append(style);
}
