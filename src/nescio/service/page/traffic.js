// The live view, which is updated every two seconds while the page is visible.

import { ask, parseSvg } from "./api.js";
import { byId, chartWidth, complain, legend, make, plural } from "./elements.js";

const PAUSE = 2_000; // milliseconds
const LONGEST_PAUSE = 30_000;

const form = byId("acknowledge"); // only a change shows it
form.remove();

// Shows the traffic until `stop` is called. `changed` is called if the detector may have changed.
export function watch({ failed, changed }) {
  let [timer, pause, seen, drawn, alive] = [0, PAUSE, 0, "", true];

  async function look() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const width = chartWidth("traffic");
      const traffic = await ask(`/v1/traffic?charts=${width}`);
      if (!alive) return;
      const another = pause > PAUSE || traffic.n_watched < seen;
      pause = PAUSE;
      if (traffic.stopping) say("bad", "The service is about to stop.");
      else say("good", "Live: updated every two seconds.");
      const { n_samples, changed: open, acknowledged } = traffic.monitor;
      const state = [traffic.n_watched, n_samples, acknowledged.length, width].join();
      // Whoever writes a note is not interrupted.
      if (state !== drawn && !(open && form.contains(document.activeElement))) {
        byId("traffic").replaceChildren(...view(traffic));
        drawn = state;
      }
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
    const note = byId("note").value.trim();
    complain("note", note ? "" : "Write who, and what was done.");
    if (!note) return;
    const body = JSON.stringify({ note });
    try {
      await ask("/v1/acknowledge", { method: "POST", body, type: "application/json" });
      form.reset();
      look();
    } catch (error) {
      say("bad", failed(error));
    }
  }

  document.addEventListener("visibilitychange", look);
  form.onsubmit = acknowledge;
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
  if (!charts.length && !monitor.acknowledged.length) {
    const text = "No traffic yet. The p-values of requests appear here, but not of what you try above.";
    return [make("p.waiting", text)];
  }
  return [...state(monitor), ...acknowledged(monitor), ...charts.map(figure)];
}

function figure({ title, text, svg }) {
  if (title !== "p-values")
    return make("figure", make("h3", title), parseSvg(svg), make("figcaption", text));
  const keys = legend([["dot", "in-distribution"], ["cross", "flagged"], ["dash", "limit"]]);
  return make("figure", make("h3", `${title} `, make("span", text)), parseSvg(svg), keys);
}

// --- the monitor ---

// The words are those of Monitor.summary: the first line says what has changed, the last
// line states the evidence, and indented lines are details of the line before them.
function state(monitor) {
  const [headline, ...lines] = monitor.summary.split("\n");
  if (!monitor.n_samples)
    return [make("div.monitor.idle", make("p.word", headline), lines.map((line) => make("p", line)))];
  const evidence = lines.pop();
  return [
    make("div", { class: `monitor ${monitor.changed ? "out" : "in"}` },
      make("p.word", `${monitor.changed ? "✗" : "✓"} ${headline}`),
      lines.flatMap((line) => [
        make(line.startsWith(" ") ? "p.detail" : "p", line.trim()),
        line.startsWith("What to do") ? form : null,
      ]),
      make("p.aside", evidence),
    ),
  ];
}

function acknowledged({ acknowledged: alarms }) {
  if (!alarms.length) return [];
  const lines = alarms.toReversed().map(({ time, alarm, note }) =>
    make("li", make("b", time), ` ${note} `, make("span.aside", alarm)),
  );
  const title = make("summary", plural(alarms.length, "acknowledged change"));
  return [make("details", title, make("ul", lines))];
}
