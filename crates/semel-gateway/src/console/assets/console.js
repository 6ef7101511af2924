// What pages do besides what they say: times in the viewer's zone, charts, and following what happens.
// Everything works without it. Nothing is fetched but the page itself, again.
"use strict";
(() => {
  const main = document.getElementById("main");
  const status = document.getElementById("status");

  // Times: here in the viewer's zone, with UTC where the pointer rests.
  const stamp = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  const minute = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
  function times(root) {
    for (const time of root.querySelectorAll("time")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const utc = at.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
      const isToday = at.toDateString() === new Date().toDateString();
      time.textContent = time.dataset.as ?? (isToday ? clock : stamp).format(at);
      time.title = time.dataset.as ? `${stamp.format(at)}; ${utc}` : utc;
    }
  }

  // Charts: each is drawn from the table behind it.
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const charts = new Map();
  function figures(table) {
    const columns = [...table.tHead.rows[0].cells].map(() => []);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, nth) => {
        const text = nth ? cell.textContent : Date.parse(cell.firstChild.dateTime) / 1000;
        columns[nth].push(text === "" ? null : Number(text));
      });
    }
    return columns;
  }
  function draw(chart) {
    const table = document.getElementById(chart.dataset.table);
    const known = charts.get(chart);
    if (known) return known.setData(figures(table));
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const lines = [...table.tHead.rows[0].cells].slice(1).map((cell) => ({
      label: cell.textContent,
      stroke: colour(`--c${cell.dataset.colour}`),
      width: 2,
      // Not by colour alone.
      dash: cell.dataset.colour % 2 ? [] : [6, 4],
      points: { show: table.tBodies[0].rows.length < 3 },
      value: (_, value) => value ?? "–",
    }));
    const size = () => ({ width: chart.clientWidth, height: 190 });
    const plot = new uPlot({
      ...size(),
      scales: { x: { range: (_, least, most) => [(most ?? Date.now() / 1000) - chart.dataset.seconds, most ?? Date.now() / 1000] }, y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, space: 90, values: (_, all) => all.map((at) => (at % 60 ? clock : minute).format(new Date(at * 1000))) },
        { ...axis, size: 56 },
      ],
      series: [{ label: "Time", value: (_, at) => (at == null ? "–" : clock.format(new Date(at * 1000))) }, ...lines],
    }, figures(table), chart);
    charts.set(chart, plot);
    new ResizeObserver(() => plot.setSize(size())).observe(chart);
  }
  function drawAll() {
    if (typeof uPlot !== "undefined") document.querySelectorAll(".chart").forEach(draw);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    charts.forEach((plot, chart) => { plot.destroy(); chart.replaceChildren(); });
    charts.clear();
    drawAll();
  });

  // Live: the page is fetched again, and the parts that differ take the place of those before.
  const button = document.getElementById("live");
  let isLive = sessionStorage.getItem("live") !== "no";
  function say(text) {
    if (status.textContent !== text) status.textContent = text;
  }
  function replace(part, fresh) {
    // Focus stays on the link that had it.
    const focus = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    part.replaceChildren(...fresh.childNodes);
    if (focus) part.querySelector(`[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
    times(part);
  }
  // What somebody marks, to copy it, stays until they let go.
  function isMarked(part) {
    const marked = getSelection();
    return !marked.isCollapsed && marked.containsNode(part, true);
  }
  async function refresh() {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(20_000) });
    if (new URL(answer.url).pathname.endsWith("/sign-in")) return "Signed out. Open the page again to sign in.";
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const isOther = !answer.ok && !page.getElementById("list");
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (!fresh) continue;
      times(fresh);
      if (fresh.innerHTML !== part.innerHTML && !isMarked(part)) replace(part, fresh);
    }
    if (isOther) return `${page.querySelector("h1")?.textContent ?? "This page is gone"}. What you see is from before.`;
    const changed = document.getElementById("changed");
    if (changed) changed.hidden = page.getElementById("main").dataset.seen === main.dataset.seen;
    drawAll();
    return "";
  }
  async function follow() {
    for (;;) {
      await new Promise((then) => setTimeout(then, main.dataset.live * 1000));
      if (!isLive || document.hidden) continue;
      try {
        say(await refresh());
      } catch {
        say("The gateway does not answer. What you see is from before.");
      }
    }
  }
  function show() {
    button.setAttribute("aria-pressed", isLive);
    button.hidden = false;
  }
  if (main.dataset.live) {
    show();
    button.addEventListener("click", () => {
      isLive = !isLive;
      sessionStorage.setItem("live", isLive ? "yes" : "no");
      show();
    });
    follow();
  }

  // A form is sent once.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) return event.preventDefault();
    event.target.dataset.sent = "yes";
    event.submitter?.setAttribute("aria-busy", "true");
    say("Working…");
  });
  addEventListener("pageshow", () => {
    for (const form of document.forms) delete form.dataset.sent;
    document.querySelectorAll("[aria-busy]").forEach((busy) => busy.removeAttribute("aria-busy"));
    say("");
  });

  // After a link from another site the browser did not show its session; from this page it does.
  const signIn = document.getElementById("sign-in");
  if (signIn && !signIn.querySelector("[role=alert]")) {
    fetch(signIn.dataset.to, { redirect: "manual", signal: AbortSignal.timeout(20_000) }).then((answer) => {
      if (answer.ok) location.replace(signIn.dataset.to);
    }).catch(() => {});
  }

  times(document);
  drawAll();
})();
