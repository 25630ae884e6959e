"use strict";
// Read a chart out under the pointer, or with the arrow keys.
for (const plot of document.querySelectorAll(".plot[data-read]")) {
  const read = JSON.parse(plot.dataset.read || "[]");
  const names = JSON.parse(plot.dataset.names || "[]");
  if (!read.length) continue;
  const out = document.createElement("div");
  out.className = "out";
  out.setAttribute("role", "status");
  out.hidden = true;
  const hair = document.createElement("i");
  hair.className = "hair";
  hair.hidden = true;
  plot.append(hair, out);
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(read.length - 1, index));
    const [left, head, ...values] = read[at];
    const right = at + 1 < read.length ? read[at + 1][0] : 100;
    const middle = (left + right) / 2;
    const lines = values.map((value, i) => (names[i] ? `${names[i]} ${value}` : value));
    out.textContent = [head, ...lines].join("\n");
    hair.style.left = out.style.left = `${middle}%`;
    out.classList.toggle("flip", middle > 55);
    out.hidden = hair.hidden = false;
  };
  const hide = () => { out.hidden = hair.hidden = true; at = -1; };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width) * 100;
    let index = read.findIndex(([left]) => left > share);
    index = index === -1 ? read.length - 1 : index - 1;
    show(index);
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { show(at === -1 ? (step > 0 ? 0 : read.length - 1) : at + step); event.preventDefault(); }
    if (event.key === "Escape") hide();
  });
}
// A tile of the board leads to what its invariant says: open it.
function reveal() {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) {
    for (let outer = target; outer; outer = outer.parentElement.closest("details")) outer.open = true;
    target.scrollIntoView({ block: "start" });
    target.querySelector("summary").focus({ preventScroll: true });
  }
}
addEventListener("hashchange", reveal);
reveal();
// On paper everything is open.
const closed = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.row:not([open]), details.held")) {
    if (!details.open && details.querySelector("table, ul, .row")) {
      details.open = true;
      closed.push(details);
    }
  }
});
addEventListener("afterprint", () => { for (const details of closed.splice(0)) details.open = false; });
