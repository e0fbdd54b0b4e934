// Puts the parts of the overview that the server sends in their places. A part that holds the
// focus gets it back, and an open list of terms stays open.
"use strict";
// Shows how far a running action is.
(function again() {
  if (!document.querySelector("[data-running]")) return;
  setTimeout(async () => {
    try {
      const fresh = new DOMParser().parseFromString(await (await fetch(location.href, { headers: { Accept: "text/html" } })).text(), "text/html");
      document.getElementById("main").replaceChildren(...fresh.getElementById("main").childNodes);
    } catch { // the next try may do
      const connection = document.getElementById("connection");
      connection.textContent ||= "This page is disconnected from its instance since " + new Date().toISOString() +
        " and shows what was then. An action ends with its instance; the audit has what it has done.";
      connection.hidden = false;
    }
    again();
  }, 1000);
})();
(function () {
  const path = document.body.dataset.live;
  if (!path || !window.EventSource) return;
  const connection = document.getElementById("connection");
  const tell = (text) => {
    connection.hidden = text === "";
    if (connection.textContent !== text) connection.textContent = text;
  };
  const links = (place) => Array.from(place.querySelectorAll("a, summary, [tabindex]"));
  const put = (part) => {
    const place = document.getElementById(part.id);
    if (!place) return;
    const focused = links(place).indexOf(document.activeElement);
    const open = Array.from(place.querySelectorAll("details"), (d) => d.open);
    place.innerHTML = part.html;
    place.querySelectorAll("details").forEach((d, i) => { if (i in open) d.open = open[i]; });
    if (focused >= 0 && links(place)[focused]) links(place)[focused].focus({ preventScroll: true });
  };
  const events = new EventSource(path);
  events.addEventListener("open", () => tell(""));
  events.addEventListener("parts", (e) => JSON.parse(e.data).forEach(put));
  events.addEventListener("error", () => {
    if (!connection.hidden) return;
    tell("This page is disconnected from its instance since " + new Date().toISOString() + " and shows what was then. Instances that were there: ");
    document.querySelectorAll("#election tbody th").forEach((th, i) => {
      connection.append(i ? ", " : "", ...Array.from(th.childNodes, (n) => n.cloneNode(true)), " on " + th.parentNode.cells[2].textContent);
    });
  });
})();
