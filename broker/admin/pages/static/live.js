// Keeps pages live: htmx asks for the page again, and this says when no answer comes. A page works
// without it. Must never run text that came from a client, and keeps nothing in the browser.
"use strict";
(function () {
  var since = null;
  var body = document.body;

  function clock(when) {
    return when.toISOString().slice(11, 19) + " UTC";
  }

  function lost() {
    var notice = document.getElementById("away");
    if (!notice) return;
    if (since === null) since = new Date();
    var text = "No answer since " + clock(since) + ". This page comes back by itself.";
    if (notice.textContent !== text) notice.textContent = text;
    notice.parentNode.hidden = false;
    body.classList.add("is-stale");
  }

  function found() {
    if (since === null) return;
    since = null;
    document.getElementById("away").parentNode.hidden = true;
    body.classList.remove("is-stale");
  }

  // Does somebody select text, or is the page out of sight? Then it is left alone.
  function isBusy() {
    var selection = window.getSelection();
    return document.hidden || (selection !== null && selection.type === "Range");
  }

  body.addEventListener("htmx:beforeRequest", function (event) {
    var element = event.detail.elt;
    if (element.hasAttribute("data-live") && isBusy()) event.preventDefault();
  });
  body.addEventListener("htmx:sendError", lost);
  body.addEventListener("htmx:timeout", lost);
  body.addEventListener("htmx:responseError", function (event) {
    var status = event.detail.xhr.status;
    if (status === 401) window.location.reload();
    else if (status >= 500 || status === 429) lost();
  });
  body.addEventListener("htmx:afterOnLoad", function (event) {
    if (event.detail.xhr.status < 400) found();
  });
  // A narrow window shows a part of the bar: let it be the one with the page that is open.
  var current = document.querySelector(".places [aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "nearest" });

  // The way here was kept by the browser: what it shows may be long gone.
  window.addEventListener("pageshow", function (event) {
    if (event.persisted) window.location.reload();
  });
})();
