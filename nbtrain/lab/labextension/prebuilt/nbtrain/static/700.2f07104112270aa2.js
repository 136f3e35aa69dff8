"use strict";(self.rspackChunknbtrain=self.rspackChunknbtrain||[]).push([[700],{22(t,e,n){var r=n(23),o=n.n(r),a=n(24),i=(n.n(a))()(o());i.push([t.id,`/* Styles for the JupyterLab widgets around the views. The views' own styles are in lab/ui/elements/style.js. */

.nbtrain-View {
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  overflow: auto;
  min-width: 220px;
}

.nbtrain-CompareView {
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
`,""]),n.d(e,{},{A:i})},24(t){t.exports=function(t){var e=[];return e.toString=function(){return this.map(function(e){var n="",r=void 0!==e[5];return e[4]&&(n+="@supports (".concat(e[4],") {")),e[2]&&(n+="@media ".concat(e[2]," {")),r&&(n+="@layer".concat(e[5].length>0?" ".concat(e[5]):""," {")),n+=t(e),r&&(n+="}"),e[2]&&(n+="}"),e[4]&&(n+="}"),n}).join("")},e.i=function(t,n,r,o,a){"string"==typeof t&&(t=[[null,t,void 0]]);var i={};if(r)for(var s=0;s<this.length;s++){var c=this[s][0];null!=c&&(i[c]=!0)}for(var u=0;u<t.length;u++){var l=[].concat(t[u]);r&&i[l[0]]||(void 0!==a&&(void 0===l[5]||(l[1]="@layer".concat(l[5].length>0?" ".concat(l[5]):""," {").concat(l[1],"}")),l[5]=a),n&&(l[2]&&(l[1]="@media ".concat(l[2]," {").concat(l[1],"}")),l[2]=n),o&&(l[4]?(l[1]="@supports (".concat(l[4],") {").concat(l[1],"}"),l[4]=o):l[4]="".concat(o)),e.push(l))}},e}},23(t){t.exports=function(t){return t[1]}},16(t){var e=[];function n(t){for(var n=-1,r=0;r<e.length;r++)if(e[r].identifier===t){n=r;break}return n}function r(t,r){for(var o={},a=[],i=0;i<t.length;i++){var s=t[i],c=r.base?s[0]+r.base:s[0],u=o[c]||0,l="".concat(c," ").concat(u);o[c]=u+1;var p=n(l),d={css:s[1],media:s[2],sourceMap:s[3],supports:s[4],layer:s[5]};if(-1!==p)e[p].references++,e[p].updater(d);else{var f=function(t,e){var n=e.domAPI(e);return n.update(t),function(e){e?(e.css!==t.css||e.media!==t.media||e.sourceMap!==t.sourceMap||e.supports!==t.supports||e.layer!==t.layer)&&n.update(t=e):n.remove()}}(d,r);r.byIndex=i,e.splice(i,0,{identifier:l,updater:f,references:1})}a.push(l)}return a}t.exports=function(t,o){var a=r(t=t||[],o=o||{});return function(t){t=t||[];for(var i=0;i<a.length;i++){var s=n(a[i]);e[s].references--}for(var c=r(t,o),u=0;u<a.length;u++){var l=n(a[u]);0===e[l].references&&(e[l].updater(),e.splice(l,1))}a=c}}},18(t){var e={};t.exports=function(t,n){var r=function(t){if(void 0===e[t]){var n=document.querySelector(t);if(window.HTMLIFrameElement&&n instanceof window.HTMLIFrameElement)try{n=n.contentDocument.head}catch(t){n=null}e[t]=n}return e[t]}(t);if(!r)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");r.appendChild(n)}},20(t){t.exports=function(t){var e=document.createElement("style");return t.setAttributes(e,t.attributes),t.insert(e,t.options),e}},19(t,e,n){t.exports=function(t){var e=n.nc;e&&t.setAttribute("nonce",e)}},17(t){t.exports=function(t){if("u"<typeof document)return{update:function(){},remove:function(){}};var e=t.insertStyleElement(t);return{update:function(n){var r,o,a;r="",n.supports&&(r+="@supports (".concat(n.supports,") {")),n.media&&(r+="@media ".concat(n.media," {")),(o=void 0!==n.layer)&&(r+="@layer".concat(n.layer.length>0?" ".concat(n.layer):""," {")),r+=n.css,o&&(r+="}"),n.media&&(r+="}"),n.supports&&(r+="}"),(a=n.sourceMap)&&"u">typeof btoa&&(r+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),t.styleTagTransform(r,e,t.options)},remove:function(){var t;null===(t=e).parentNode||t.parentNode.removeChild(t)}}}},21(t){t.exports=function(t,e){if(e.styleSheet)e.styleSheet.cssText=t;else{for(;e.firstChild;)e.removeChild(e.firstChild);e.appendChild(document.createTextNode(t))}}},15(t,e,n){var r=n(16),o=n.n(r),a=n(17),i=n.n(a),s=n(18),c=n.n(s),u=n(19),l=n.n(u),p=n(20),d=n.n(p),f=n(21),v=n.n(f),h=n(22),b={};b.styleTagTransform=v(),b.setAttributes=l(),b.insert=c().bind(null,"head"),b.domAPI=i(),b.insertStyleElement=d(),o()(h.A,b),h.A&&h.A.locals&&h.A.locals}}]);