// The live view: asked for every two seconds while the page is in sight.

import { ask } from "./api.js";
import { isOutside, responsive, scoresOverTime, sharesOverTime } from "./charts.js";
import { byId, count, legend, make, percent, plural } from "./elements.js";

const PAUSE = 2_000; // milliseconds
const LONGEST_PAUSE = 30_000;

// Follow the traffic until `stop` is called. `changed` is called when the detector may be another.
export function watch(detector, { refused, changed }) {
  let [timer, pause, seen, alive] = [0, PAUSE, -1, true];

  async function look() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const traffic = await ask("/v1/traffic");
      if (!alive) return;
      const another = pause > PAUSE || traffic.n_watched < seen;
      pause = PAUSE;
      if (traffic.stopping) say("bad", "The service is about to stop.");
      else say("good", "Live, every two seconds.");
      if (traffic.n_watched !== seen) byId("traffic").replaceChildren(...view(traffic, detector));
      seen = traffic.n_watched;
      if (another) changed();
    } catch (error) {
      const text = refused(error);
      if (!alive) return;
      pause = Math.min(2 * pause, LONGEST_PAUSE);
      say("bad", `${text} Trying again in ${pause / 1000} seconds.`);
    }
    if (alive) timer = setTimeout(look, pause);
  }

  document.addEventListener("visibilitychange", look);
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
  if (live.textContent !== text) live.textContent = text; // said aloud only when it is new
}

function view({ n_watched: watched, recent, flagged, monitor }, detector) {
  const n = recent.score.length;
  if (!n) {
    const text = "No traffic yet. Scores appear here as requests come in;";
    return [make("p", { class: "waiting" }, `${text} those of this page count too.`)];
  }
  const [taus, edges] = [Object.values(detector.tau), detector.histogram.edges];
  const which =
    watched > n ? `the latest ${count(n)} of ${count(watched)} inputs` : plural(n, "input");
  const threshold =
    taus.length === 1 ? "threshold τ" : "thresholds τ by number of predicted labels";
  return [
    ...state(monitor),
    make(
      "figure",
      {},
      make("h3", {}, "Scores ", make("span", {}, `of ${which}, oldest first`)),
      responsive((width) => scoresOverTime(width, recent, { taus, edges })),
      legend([["dot", "in-distribution"], ["cross", "flagged"], ["dash", threshold]]),
    ),
    make(
      "figure",
      {},
      make("h3", {}, "Share flagged ", make("span", {}, inWords(flagged.all))),
      responsive((width) => sharesOverTime(width, flagged.chunks)),
      legend([["shade", "expected band"], ["dot", "within it"], ["diamond", "outside"]]),
    ),
  ];
}

function inWords(share) {
  const where = isOutside(share) ? "outside" : "within";
  const band = `${percent(share.low)} to ${percent(share.high)}`;
  return `${percent(share.share)}, ${where} the expected ${band}`;
}

// --- the monitor ---

function state(monitor) {
  const evidence = monitor.log10_martingale;
  const needed = -Math.log10(monitor.alpha);
  const drifting = monitor.label_drifts ?? [];
  const worried = monitor.alarm || drifting.length > 0;
  return [
    make(
      "div",
      { class: `monitor ${worried ? "out" : "in"}` },
      make("p", { class: "word" }, headline(monitor, drifting)),
      meter(evidence, needed),
      make(
        "p",
        {},
        "Evidence that the inputs have changed: ",
        ...power(evidence),
        ", at most it was ",
        ...power(monitor.max_log10_martingale),
        ". The alarm is given at ",
        ...power(needed),
        `; a false one has a probability of at most ${percent(monitor.alpha)}.`,
      ),
      make("p", { class: "aside" }, ofLabels(monitor)),
      drifting.length ? make("ul", { class: "drift" }, drifting.slice(0, 8).map(drift)) : null,
    ),
  ];
}

function power(exponent) {
  const rounded = Number(exponent.toFixed(1));
  return rounded ? ["10", make("sup", {}, String(rounded).replace("-", "−"))] : ["1"];
}

function headline(monitor, drifting) {
  if (monitor.alarm)
    return `✗ ALARM after ${plural(monitor.alarm_at, "input")}: the stream has changed`;
  if (drifting.length) return `✗ ${plural(drifting.length, "label drifts", "labels drift")}`;
  return "✓ No alarm: nothing says that the stream has changed";
}

function ofLabels(monitor) {
  if (monitor.label_drifts === null)
    return "Labels are not watched: the detector’s file does not say how often they fired.";
  if (!monitor.n_label_tests) return "Labels are compared once a window of inputs is full.";
  const tests = plural(monitor.n_label_tests, "test");
  if (!monitor.label_drifts.length) return `No label drifts, in ${tests}.`;
  return `Labels that drift, in ${tests}:`;
}

const drift = ({ label, rate, calibration_rate: usual }) =>
  make("li", {}, make("b", {}, label), ` fires for ${percent(rate)}, usually for ${percent(usual)}`);

function meter(evidence, needed) {
  const bar = make("div", { class: "fill" });
  bar.style.width = `${(100 * Math.min(needed, Math.max(0, evidence))) / needed}%`;
  return make("div", { class: "meter", "aria-hidden": "true" }, bar);
}
