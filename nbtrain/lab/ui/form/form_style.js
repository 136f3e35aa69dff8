// The form's style sheet, in addition to the common one.

export const FORM_CSS = `
.nbtrain-form{max-width:1120px;border:1px solid var(--nbt-line);border-radius:8px;padding:10px 14px 12px}
/* The form fills its own tab, which scrolls. */
.nbt-fills.nbtrain-form{max-width:1240px;border:0;border-radius:0;padding-top:12px}
.nbtrain-form fieldset{border:0;margin:0;padding:0;min-width:0}
.nbtrain-form fieldset:disabled{opacity:.55}
.nbtrain-form .nbf-title{font-size:15px;font-weight:600}
.nbtrain-form .nbf-top{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(200px,100%),1fr));
 align-items:start;gap:6px 16px}
.nbtrain-form .nbf-top label{display:grid;gap:2px;font-size:11px;color:var(--nbt-dim);align-content:start}
.nbtrain-form .nbf-top select,.nbtrain-form .nbf-top input{width:100%;max-width:none}
/* The line for errors is always there, so that the fields below do not move. */
.nbtrain-form .nbf-name-help.nbf-error{height:auto;min-height:calc(1.35em + 6px);padding:2px 0 3px;
 margin-bottom:6px;border-bottom:1px solid var(--nbt-line)}
.nbtrain-form .nbf-notice{min-height:22px;display:flex;flex-wrap:wrap;align-items:center;gap:4px 8px;
 font-size:12px;color:var(--nbt-dim);margin:4px 0}
.nbtrain-form .nbf-notice.nbf-silent{min-height:0;margin:0}
.nbtrain-form .nbf-notice.nbf-bad{color:var(--nbt-failed)}
.nbtrain-form .nbf-middle{display:grid;grid-template-columns:minmax(0,1.25fr) minmax(0,1fr);gap:4px 22px}
.nbtrain-form .nbf-grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(190px,100%),1fr));
 gap:2px 16px;align-items:start}
.nbtrain-form .nbf-part{margin:8px 0 2px;font-size:12px;font-weight:600;color:var(--nbt-fg);
 grid-column:1/-1}
.nbtrain-form .nbf-field{border-left:3px solid transparent;padding:2px 0 2px 8px;min-width:0}
.nbtrain-form .nbf-head{display:flex;align-items:center;gap:6px;min-height:24px}
.nbtrain-form .nbf-label{font-size:12px;font-weight:500;color:var(--nbt-fg);overflow-wrap:anywhere}
.nbtrain-form .nbf-label i{display:block;font-style:normal;font-weight:400;font-size:11px;color:var(--nbt-dim)}
.nbtrain-form .nbf-meta{font-size:11px;line-height:1.35;min-height:1.35em;color:var(--nbt-dim);
 white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.nbtrain-form .nbf-badge{color:var(--nbt-fg);font-weight:600}
.nbt-root .nbf-head .nbf-back{margin-left:auto;border:0;padding:0 5px;line-height:18px;color:var(--nbt-dim)}
.nbtrain-form .nbf-row{display:flex;align-items:center;gap:6px}
.nbtrain-form .nbf-row input[type=text],.nbtrain-form .nbf-row select,.nbtrain-form textarea{flex:1;
 width:100%;min-width:0;max-width:none}
.nbtrain-form textarea{font:11.5px/1.4 var(--nbt-mono);color:var(--nbt-fg);background:var(--nbt-bg);
 border:1px solid var(--nbt-line);border-radius:4px;padding:3px 6px;resize:vertical}
.nbtrain-form .nbf-row input[type=checkbox]{margin:5px 0}
.nbtrain-form .nbf-unit{font-size:11px;color:var(--nbt-dim);white-space:nowrap}
.nbtrain-form .nbf-help{font-size:11px;line-height:1.35;height:4.05em;color:var(--nbt-dim);
 overflow-wrap:anywhere}
.nbtrain-form .nbf-help:not(.nbf-error){display:-webkit-box;-webkit-box-orient:vertical;
 -webkit-line-clamp:3;overflow:hidden}
.nbtrain-form .nbf-help.nbf-error{overflow:auto}
/* The text of a problem also takes the line of the default, so that it fits and nothing moves. */
.nbtrain-form .nbf-bad .nbf-meta{display:none}
.nbtrain-form .nbf-field.nbf-bad .nbf-help{height:5.4em}
.nbtrain-form .nbf-error{color:var(--nbt-failed)}
.nbtrain-form .nbf-warning{color:var(--nbt-warned)}
/* The description of a disabled field stays as readable as the others. */
.nbtrain-form .nbf-off :is(.nbf-head,.nbf-row){opacity:.55}
.nbtrain-form .nbf-changed{border-left-color:var(--nbt-a)}
.nbtrain-form .nbf-also{border-left-color:var(--nbt-b)}
.nbtrain-form .nbf-field.nbf-bad{border-left-color:var(--nbt-bad)}
.nbtrain-form .nbf-field.nbf-bad input,.nbtrain-form .nbf-field.nbf-bad select,
 .nbtrain-form .nbf-field.nbf-bad textarea{border-color:var(--nbt-bad)}
.nbtrain-form .nbf-all{margin-top:10px;border-top:1px solid var(--nbt-line);padding-top:6px}
.nbtrain-form .nbf-all>summary{cursor:pointer;font-size:12px;font-weight:600}
.nbtrain-form .nbf-all .nbt-tabs{padding:2px 0 0}
.nbtrain-form .nbf-all .nbt-page{height:420px;overflow:auto;padding:0 4px 8px 0}
.nbtrain-form .nbf-hits{font-size:12px;color:var(--nbt-dim)}
.nbt-root .nbf-searching .nbt-tablist button[aria-selected=true]{color:var(--nbt-dim);
 border-bottom-color:transparent}
.nbtrain-form .nbf-count{display:inline-block;min-width:16px;margin-left:5px;padding:0 4px;border-radius:8px;
 font-size:10.5px;line-height:15px;text-align:center;color:var(--nbt-bg);background:var(--nbt-a)}
.nbtrain-form .nbf-count.nbf-wrong{background:var(--nbt-failed)}
.nbtrain-form .nbf-beside{min-width:0;align-self:start;position:sticky;top:0}
.nbtrain-form .nbf-side{min-width:0}
.nbtrain-form .nbt-tiles{border:1px solid var(--nbt-line);border-radius:6px;
 grid-template-columns:minmax(0,1.4fr) repeat(2,minmax(0,1fr))}
.nbtrain-form .nbt-tile{padding:5px 10px 6px}
.nbtrain-form .nbt-tile strong{display:block;font-size:14px;white-space:normal;line-height:1.25;
 min-height:2.5em}
.nbtrain-form .nbf-good{color:color-mix(in srgb,var(--nbt-good) 70%,var(--nbt-fg))}
.nbtrain-form .nbf-tight{color:var(--nbt-warned)}
.nbtrain-form .nbf-stale .nbt-tiles,.nbtrain-form .nbf-stale .nbf-plan{opacity:.5}
.nbtrain-form .nbf-when:empty{display:none}
.nbtrain-form .nbf-when{font-size:11px;color:var(--nbt-dim)}
.nbtrain-form .nbf-verdict{font-weight:600;font-size:12.5px;margin:2px 0}
.nbtrain-form .nbf-found{max-height:340px;overflow:auto;border:1px solid var(--nbt-line);border-radius:6px;
 padding:4px 10px 6px;font-size:12px}
.nbtrain-form .nbf-found p{margin:3px 0;overflow-wrap:anywhere;white-space:pre-wrap}
.nbt-root.nbtrain-form .nbf-found ul{margin:2px 0;padding:0;list-style:none}
.nbtrain-form .nbf-found li{margin:3px 0}
.nbtrain-form .nbf-findings p{font-size:12px;margin:4px 0}
.nbt-root .nbf-found :is(li,p) button:not(.nbf-act){display:inline;border:0;padding:0;text-align:left;white-space:normal;
 color:inherit}
.nbtrain-form .nbf-tables{display:grid;gap:2px 26px;align-items:start;
 grid-template-columns:repeat(auto-fit,minmax(min(360px,100%),1fr))}
.nbt-root.nbtrain-form .nbf-plan th{white-space:nowrap}
.nbt-root .nbf-found :is(li,p) button b{text-decoration:underline}
.nbt-root .nbf-found .nbf-act{margin:2px 4px 2px 0}
.nbtrain-form .nbf-foot{display:grid;gap:6px;min-width:0;margin-top:10px;padding-top:10px;
 border-top:1px solid var(--nbt-line);background:var(--nbt-bg)}
.nbtrain-form code.nbf-line{display:block;padding:5px 9px;border-radius:5px;overflow-wrap:anywhere;
 background:var(--nbt-soft);color:var(--nbt-fg);font:11.5px/1.5 var(--nbt-mono);height:46px;overflow:auto}
.nbtrain-form .nbf-buttons{display:flex;flex-wrap:wrap;gap:6px 8px;align-items:center}
.nbt-root .nbf-buttons .nbt-primary{padding:4px 18px;margin-left:auto}
.nbtrain-form .nbf-answer{font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere}
.nbtrain-form .nbf-answer:empty{display:none}
.nbtrain-form .nbf-kernel{font-size:11px;color:var(--nbt-dim)}
.nbtrain-form .nbf-kernel.nbf-warning{color:var(--nbt-warned)}
.nbtrain-form .nbf-now{margin-top:2px;color:var(--nbt-fg)}
.nbtrain-form .nbf-run:not(:empty){margin-top:8px}
.nbtrain-form .nbf-layouts td:first-child{padding-right:8px}
@container (max-width:760px){.nbtrain-form .nbf-help{height:5.4em}
 .nbtrain-form .nbf-field.nbf-bad .nbf-help{height:6.75em}
 .nbtrain-form .nbf-help:not(.nbf-error){-webkit-line-clamp:4}
 .nbtrain-form .nbf-middle{grid-template-columns:minmax(0,1fr)}
 .nbtrain-form .nbf-beside{display:contents}
 .nbtrain-form .nbf-side{order:-1}
 /* The buttons are below the fields, and stay visible. */
 .nbtrain-form .nbf-foot{position:sticky;bottom:0;padding-bottom:8px;z-index:2}
 /* In a narrow form, this box is above the fields. Its height is fixed, so that the fields do not move. */
 .nbtrain-form .nbf-found{height:112px}}
`;
