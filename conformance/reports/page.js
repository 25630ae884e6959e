"use strict";
const nav = document.querySelector("nav");
const rows = [...document.querySelectorAll(".row")];
const search = nav.querySelector("input");
const state = { outcome: "", version: "" };

function apply() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    row.hidden =
      (state.outcome && row.dataset.outcome !== state.outcome) ||
      (state.version && row.dataset.version !== state.version) ||
      !words.every((word) => row.dataset.words.includes(word));
  }
  for (const group of document.querySelectorAll("section.chapter, section.version")) {
    group.hidden = !group.querySelector(".row:not([hidden])");
  }
  document.querySelector("#empty").hidden = rows.some((row) => !row.hidden);
  for (const button of nav.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(state[button.name] === button.value));
  }
}

nav.hidden = false;
nav.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) {
    state[button.name] = state[button.name] === button.value ? "" : button.value;
    apply();
  }
});
nav.addEventListener("input", apply);
nav.addEventListener("submit", (event) => event.preventDefault());
apply();
