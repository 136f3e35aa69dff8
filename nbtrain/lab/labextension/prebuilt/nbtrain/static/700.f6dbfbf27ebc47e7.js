"use strict";(self.rspackChunknbtrain=self.rspackChunknbtrain||[]).push([[700],{22(t,n,r){var e=r(23),o=r.n(e),a=r(24),i=(r.n(a))()(o());i.push([t.id,`/* What JupyterLab's side of the views needs; their own look is lab/ui/style.js. */

.nbtrain-View {
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  overflow: auto;
  min-width: 220px;
}

.nbtrain-RunsView,
.nbtrain-CompareView,
.nbtrain-FormView {
  padding: 12px;
}

.nbtrain-Sidebar {
  display: flex;
  flex-direction: column;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  min-width: 240px;
}

.nbtrain-Sidebar > .nbtrain-View {
  flex: 1;
}

.nbtrain-Word {
  margin: 10px 12px;
  color: var(--jp-ui-font-color2);
}

.nbtrain-Word:empty {
  display: none;
}

.nbtrain-List {
  list-style: none;
  margin: 0;
  padding: 4px 0;
}

.nbtrain-List li {
  display: flex;
  align-items: center;
  padding-right: 8px;
}

.nbtrain-List li:hover {
  background: var(--jp-layout-color2);
}

.nbtrain-List button {
  font: inherit;
  color: inherit;
  background: transparent;
  border: 0;
  border-radius: 3px;
  cursor: pointer;
}

.nbtrain-List button:focus-visible {
  outline: 1px solid var(--jp-brand-color1);
  outline-offset: -1px;
}

.nbtrain-List .nbtrain-Open {
  flex: 1;
  min-width: 0;
  padding: 4px 12px;
  text-align: left;
}

.nbtrain-List .nbtrain-Open span {
  display: block;
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.nbtrain-List .nbtrain-State {
  font-size: 11px;
  color: var(--jp-ui-font-color2);
}

.nbtrain-List .nbtrain-Stop {
  padding: 1px 8px;
  font-size: 12px;
  color: var(--jp-error-color1);
  border: 1px solid currentcolor;
}

.nbtrain-TensorBoard iframe {
  border: 0;
}

.nbtrain-Status {
  display: flex;
  align-items: center;
}

.nbtrain-Status button {
  font: inherit;
  color: inherit;
  background: transparent;
  border: 0;
  padding: 0 4px;
  height: 100%;
  cursor: pointer;
}

.nbtrain-Status button:hover {
  background: var(--jp-layout-color2);
}

.nbtrain-Status button:focus-visible {
  outline: 1px solid var(--jp-brand-color1);
  outline-offset: -1px;
}
`,""]),r.d(n,{},{A:i})},24(t){t.exports=function(t){var n=[];return n.toString=function(){return this.map(function(n){var r="",e=void 0!==n[5];return n[4]&&(r+="@supports (".concat(n[4],") {")),n[2]&&(r+="@media ".concat(n[2]," {")),e&&(r+="@layer".concat(n[5].length>0?" ".concat(n[5]):""," {")),r+=t(n),e&&(r+="}"),n[2]&&(r+="}"),n[4]&&(r+="}"),r}).join("")},n.i=function(t,r,e,o,a){"string"==typeof t&&(t=[[null,t,void 0]]);var i={};if(e)for(var s=0;s<this.length;s++){var c=this[s][0];null!=c&&(i[c]=!0)}for(var l=0;l<t.length;l++){var p=[].concat(t[l]);e&&i[p[0]]||(void 0!==a&&(void 0===p[5]||(p[1]="@layer".concat(p[5].length>0?" ".concat(p[5]):""," {").concat(p[1],"}")),p[5]=a),r&&(p[2]&&(p[1]="@media ".concat(p[2]," {").concat(p[1],"}")),p[2]=r),o&&(p[4]?(p[1]="@supports (".concat(p[4],") {").concat(p[1],"}"),p[4]=o):p[4]="".concat(o)),n.push(p))}},n}},23(t){t.exports=function(t){return t[1]}},16(t){var n=[];function r(t){for(var r=-1,e=0;e<n.length;e++)if(n[e].identifier===t){r=e;break}return r}function e(t,e){for(var o={},a=[],i=0;i<t.length;i++){var s=t[i],c=e.base?s[0]+e.base:s[0],l=o[c]||0,p="".concat(c," ").concat(l);o[c]=l+1;var u=r(p),d={css:s[1],media:s[2],sourceMap:s[3],supports:s[4],layer:s[5]};if(-1!==u)n[u].references++,n[u].updater(d);else{var f=function(t,n){var r=n.domAPI(n);return r.update(t),function(n){n?(n.css!==t.css||n.media!==t.media||n.sourceMap!==t.sourceMap||n.supports!==t.supports||n.layer!==t.layer)&&r.update(t=n):r.remove()}}(d,e);e.byIndex=i,n.splice(i,0,{identifier:p,updater:f,references:1})}a.push(p)}return a}t.exports=function(t,o){var a=e(t=t||[],o=o||{});return function(t){t=t||[];for(var i=0;i<a.length;i++){var s=r(a[i]);n[s].references--}for(var c=e(t,o),l=0;l<a.length;l++){var p=r(a[l]);0===n[p].references&&(n[p].updater(),n.splice(p,1))}a=c}}},18(t){var n={};t.exports=function(t,r){var e=function(t){if(void 0===n[t]){var r=document.querySelector(t);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(t){r=null}n[t]=r}return n[t]}(t);if(!e)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");e.appendChild(r)}},20(t){t.exports=function(t){var n=document.createElement("style");return t.setAttributes(n,t.attributes),t.insert(n,t.options),n}},19(t,n,r){t.exports=function(t){var n=r.nc;n&&t.setAttribute("nonce",n)}},17(t){t.exports=function(t){if("u"<typeof document)return{update:function(){},remove:function(){}};var n=t.insertStyleElement(t);return{update:function(r){var e,o,a;e="",r.supports&&(e+="@supports (".concat(r.supports,") {")),r.media&&(e+="@media ".concat(r.media," {")),(o=void 0!==r.layer)&&(e+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),e+=r.css,o&&(e+="}"),r.media&&(e+="}"),r.supports&&(e+="}"),(a=r.sourceMap)&&"u">typeof btoa&&(e+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),t.styleTagTransform(e,n,t.options)},remove:function(){var t;null===(t=n).parentNode||t.parentNode.removeChild(t)}}}},21(t){t.exports=function(t,n){if(n.styleSheet)n.styleSheet.cssText=t;else{for(;n.firstChild;)n.removeChild(n.firstChild);n.appendChild(document.createTextNode(t))}}},15(t,n,r){var e=r(16),o=r.n(e),a=r(17),i=r.n(a),s=r(18),c=r.n(s),l=r(19),p=r.n(l),u=r(20),d=r.n(u),f=r(21),b=r.n(f),v=r(22),h={};h.styleTagTransform=b(),h.setAttributes=p(),h.insert=c().bind(null,"head"),h.domAPI=i(),h.insertStyleElement=d(),o()(v.A,h),v.A&&v.A.locals&&v.A.locals}}]);