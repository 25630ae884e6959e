// Draws what sessions are owed over the last hour. The page says the same in words.
"use strict";
(function () {
  var EVERY_MS = 5000;
  var LEAST_S = 60;
  var place = document.getElementById("growth");
  if (!place || typeof uPlot === "undefined") return;
  var chart = null;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function short(value) {
    var units = ["", "k", "M", "G", "T"];
    var at = 0;
    while (Math.abs(value) >= 1000 && at < units.length - 1) {
      value /= 1000;
      at += 1;
    }
    return (at && value < 10 ? value.toFixed(1) : Math.round(value)) + units[at];
  }

  function bytes(value) {
    var units = ["B", "KiB", "MiB", "GiB", "TiB"];
    var at = 0;
    while (Math.abs(value) >= 1000 && at < units.length - 1) {
      value /= 1024;
      at += 1;
    }
    return (at && value < 10 ? value.toFixed(1) : Math.round(value)) + " " + units[at];
  }

  function time(seconds, withSeconds) {
    return new Date(seconds * 1000).toISOString().slice(11, withSeconds ? 19 : 16);
  }

  function axis(more) {
    return Object.assign({ stroke: colour("--quiet"), font: "12px system-ui, sans-serif",
      grid: { stroke: colour("--line-soft"), width: 1 }, ticks: { show: false } }, more);
  }

  var STEPS = [];
  for (var power = 1; power < Math.pow(2, 52); power *= 2) STEPS.push(power);

  function upTo(_, __, most) {
    return [0, most > 0 ? most * 1.1 : 1];
  }

  function draw(data) {
    var width = place.clientWidth;
    if (chart) chart.destroy();
    chart = new uPlot({
      width: width, height: 170, cursor: { y: false, drag: { x: false, y: false } },
      padding: [8, 4, 0, 0],
      scales: { x: { time: true }, messages: { range: upTo }, bytes: { range: upTo } },
      axes: [
        axis({ values: function (_, at) { return at.map(function (s) { return time(s, false); }); },
          space: 70 }),
        axis({ scale: "messages", size: 52, values: function (_, at) { return at.map(short); } }),
        axis({ scale: "bytes", side: 1, size: 62, grid: { show: false }, incrs: STEPS,
          values: function (_, at) { return at.map(bytes); } }),
      ],
      series: [
        { label: "UTC", value: function (_, v) { return v === null ? "–" : time(v, true); } },
        { label: "messages", scale: "messages", stroke: colour("--accent"), width: 2,
          points: { show: data[0].length < 3 },
          value: function (_, v) { return v === null ? "–" : v.toLocaleString("en"); } },
        { label: "bytes", scale: "bytes", stroke: colour("--quiet"), width: 1.5, dash: [5, 4],
          points: { show: data[0].length < 3 },
          value: function (_, v) { return v === null ? "–" : bytes(v); } },
      ],
    }, data, place);
  }

  var last = null;
  function ask() {
    if (document.hidden && last) return;
    fetch(place.dataset.from, { headers: { Accept: "application/json" } }).then(function (answer) {
      if (!answer.ok) return null;
      return answer.json();
    }).then(function (data) {
      if (!data) return;
      last = data;
      place.hidden = data[0].length < 2 || data[0][data[0].length - 1] - data[0][0] < LEAST_S;
      if (!place.hidden && chart && place.clientWidth === chart.width) chart.setData(data);
      else if (!place.hidden) draw(data);
    }).catch(function () { /* The notice above the page says it. */ });
  }

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    if (last && chart) draw(last);
  });
  window.addEventListener("resize", function () {
    if (last && chart && place.clientWidth !== chart.width) draw(last);
  });
  ask();
  setInterval(ask, EVERY_MS);
})();
