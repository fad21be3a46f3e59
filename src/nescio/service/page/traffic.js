// The live view, which is updated every two seconds while the page is visible.

import { ask, parseSvg } from "./api.js";
import { byId, chartWidth, legend, make, plural, show } from "./elements.js";

const PAUSE = 2_000; // milliseconds
const LONGEST_PAUSE = 30_000;

// Shows the traffic until `stop` is called. `changed` is called if the detector may have changed.
export function watch({ failed, changed }) {
  let [timer, pause, seen, alive] = [0, PAUSE, -1, true];

  async function look() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const traffic = await ask(`/v1/traffic?charts=${chartWidth("traffic")}`);
      if (!alive) return;
      const another = pause > PAUSE || traffic.n_watched < seen;
      pause = PAUSE;
      if (traffic.stopping) say("bad", "The service is about to stop.");
      else say("good", "Live: updated every two seconds.");
      if (traffic.n_watched !== seen) byId("traffic").replaceChildren(...view(traffic));
      show(byId("acknowledge"), traffic.monitor.alarm);
      seen = traffic.n_watched;
      if (another) changed();
    } catch (error) {
      const text = failed(error);
      if (!alive) return;
      pause = Math.min(2 * pause, LONGEST_PAUSE);
      say("bad", `${text} Trying again in ${pause / 1000} seconds.`);
    }
    if (alive) timer = setTimeout(look, pause);
  }

  async function acknowledge(event) {
    event.preventDefault();
    const body = JSON.stringify({ note: byId("note").value.trim() });
    try {
      await ask("/v1/acknowledge", { method: "POST", body, type: "application/json" });
      byId("note").value = "";
      seen = -1; // the next look shows it
    } catch (error) {
      say("bad", failed(error));
    }
  }

  document.addEventListener("visibilitychange", look);
  byId("acknowledge").onsubmit = acknowledge;
  look();
  return {
    stop() {
      alive = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    },
  };
}

function say(state, text) {
  const live = byId("live");
  live.dataset.state = state;
  if (live.textContent !== text) live.textContent = text; // screen readers announce only changes
}

function view({ monitor, charts }) {
  if (!charts.length) {
    const text = "No traffic yet. The p-values of all requests appear here,";
    return [make("p.waiting", `${text} including those of this page.`), ...acknowledged(monitor)];
  }
  const [recent, ...others] = charts;
  return [
    ...state(monitor),
    ...acknowledged(monitor),
    make("figure",
      make("h3", `${recent.title} `, make("span", recent.text)),
      parseSvg(recent.svg),
      legend([["dot", "in-distribution"], ["cross", "flagged"], ["dash", "limit"]]),
    ),
    ...others.map(({ title, text, svg }) =>
      make("figure", make("h3", title), parseSvg(svg), make("figcaption", text)),
    ),
  ];
}

// --- the monitor ---

// The words are those of Monitor.summary: the first line says what has changed, the last
// line states the evidence, and indented lines are details of the line before them.
function state(monitor) {
  const [headline, ...lines] = monitor.summary.split("\n");
  const evidence = lines.pop();
  return [
    make("div", { class: `monitor ${monitor.alarm ? "out" : "in"}` },
      make("p.word", `${monitor.alarm ? "✗" : "✓"} ${headline}`),
      ...lines.map((line) => make(line.startsWith(" ") ? "p.detail" : "p", line.trim())),
      meter(monitor.log10_martingale, -Math.log10(monitor.alpha)),
      evidence === undefined ? null : make("p.aside", evidence),
    ),
  ];
}

function acknowledged({ acknowledged: alarms }) {
  if (!alarms.length) return [];
  const lines = alarms.toReversed().map(({ time, alarm, note }) =>
    make("li", make("b", time), ` ${note} `, make("span.aside", alarm)),
  );
  const title = make("summary", plural(alarms.length, "acknowledged alarm"));
  return [make("details", title, make("ul", lines))];
}

function meter(evidence, needed) {
  const bar = make("div.fill");
  bar.style.width = `${(100 * Math.min(needed, Math.max(0, evidence))) / needed}%`;
  return make("div.meter", { "aria-hidden": "true" }, bar);
}
