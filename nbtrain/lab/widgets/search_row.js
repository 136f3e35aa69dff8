// The row that searches the documents of a dataset: a text field, a button, and the kernel's answer. A search is
// one message that contains the text. A text widget and a button would send two messages in either order.

function render({ model, el }) {
  const row = document.createElement("div"), label = document.createElement("label");
  const text = document.createElement("input"), next = document.createElement("button");
  const answer = document.createElement("span");
  // With the classes of ipywidgets' text and button, the row looks like the widgets above it.
  row.className = "jupyter-widgets widget-inline-hbox widget-text";
  row.style.width = "auto";
  label.className = "widget-label";
  label.textContent = "find";
  text.type = "text";
  text.placeholder = "text in a document";
  text.id = `nbtrain-search-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  text.style.flex = "0 1 240px";
  label.htmlFor = text.id;
  next.className = "jupyter-widgets jupyter-button widget-button";
  next.style.width = "70px";
  next.textContent = "next";
  next.title = "Show the next document that contains this text";
  answer.className = "widget-html";
  answer.setAttribute("role", "status");
  row.append(label, text, next, answer);
  el.append(row);
  // Without this, JupyterLab and the notebook would treat the keys as shortcuts.
  row.dataset.lmSuppressShortcuts = "true";
  row.addEventListener("keydown", (event) => event.stopPropagation());

  const search = () => model.send({ find: text.value });
  const show = () => (answer.textContent = model.get("answer"));
  next.addEventListener("click", search);
  text.addEventListener("keydown", (event) => event.key === "Enter" && !event.isComposing && search());
  model.on("change:answer", show);
  show();
  return () => model.off("change:answer", show);
}

export default { render };
