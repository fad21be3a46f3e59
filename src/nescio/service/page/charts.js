// Drawings: the calibration histogram, the labels' bars, and the traffic over time.

import { clock, count, draw, fixed, make, number, percent } from "./elements.js";

// A box whose drawing is made anew for each width, so that its text keeps its size.
export function responsive(drawing) {
  const box = make("div", { class: "chart" });
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width && width !== drawn) box.replaceChildren(drawing((drawn = width)));
  }).observe(box);
  return box;
}

const scale = (low, high, from, to) => (value) =>
  from + ((value - low) / (high - low || 1)) * (to - from);

const within = (value, low, high) => Math.min(high, Math.max(low, value));

// Round numbers between two others, about `wanted` of them.
export function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const first = Math.ceil(low / step);
  const n = Math.floor(high / step) - first + 1;
  return Array.from({ length: n }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

function words(x, y, text, { width, ...more }) {
  const half = 3.4 * text.length;
  const anchor = x < half ? "start" : x > width - half ? "end" : "middle";
  return draw("text", { x: within(x, 1, width - 1), y, "text-anchor": anchor, ...more }, text);
}

// --- one score ---

export function histogram(width, { edges, counts, tau, score }) {
  const [left, right, top, bottom] = [8, width - 8, 42, 158];
  const [low, high] = [edges[0], edges.at(-1)];
  const x = scale(low, high, left, right);
  const y = scale(0, Math.max(...counts), bottom, top);
  const beyond = score < low ? "left" : score > high ? "right" : null;
  const at = x(within(score, low, high));
  const svg = draw("svg", {
    viewBox: `0 0 ${width} 182`,
    width,
    height: 182,
    role: "img",
    "aria-label":
      `Histogram of the calibration scores from ${number(low)} to ${number(high)}, ` +
      `tau at ${number(tau)}, this input at ${number(score)}.`,
  });
  counts.forEach((n, bin) => {
    // The bin that tau falls into is drawn in two parts.
    const cut = within(tau, edges[bin], edges[bin + 1]);
    for (const [kind, from, to] of [["below", edges[bin], cut], ["above", cut, edges[bin + 1]]])
      if (n && to > from) svg.append(box(kind, x(from), x(to), y(n), bottom));
  });
  svg.append(draw("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
  for (const tick of ticks(low, high, width / 90))
    svg.append(words(x(tick), bottom + 17, number(tick), { width }));
  svg.append(
    draw("path", { class: "rule", "data-mark": "tau", d: `M${x(tau)} ${top - 9}V${bottom}` }),
    words(x(tau), top - 14, `τ ${number(tau)}`, { width }),
    marker(at, beyond, top, bottom, score < tau),
    words(at, 13, pointed(`this input ${number(score)}`, beyond), { width, class: "strong" }),
  );
  return svg;
}

const pointed = (text, beyond) =>
  beyond === "left" ? `◀ ${text}` : beyond === "right" ? `${text} ▶` : text;

const box = (kind, left, right, top, bottom) =>
  draw("rect", { class: kind, x: left, y: top, width: right - left, height: bottom - top });

function marker(at, beyond, top, bottom, isOut) {
  const turn = { left: 90, right: -90 }[beyond] ?? 0;
  const tip = beyond ? (top + bottom) / 2 : bottom;
  return draw(
    "g",
    { class: `marker ${isOut ? "out" : "in"}`, "data-mark": "score", "data-beyond": beyond },
    draw("path", { d: `M${at} 19V${bottom}` }),
    draw("path", {
      class: "tip",
      d: "M-6 -9H6L0 0Z",
      transform: `translate(${at} ${tip}) rotate(${turn})`,
    }),
  );
}

// --- one input's labels ---

export function labelBars(labels) {
  const known = labels.flatMap(({ term, median, rank_median }) => [term, median, rank_median]);
  const values = known.filter((value) => value !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const at = scale(low, high, 0, 100);
  const list = make("ol", { class: "bars" });
  for (const label of labels) {
    const track = make("div", { class: "track" }, mark("zero", at(0)));
    if (label.term !== null) {
      const bar = make("div", { class: "bar" });
      const [from, to] = [0, label.term].map(at).sort((one, other) => one - other);
      bar.style.left = `${from}%`;
      bar.style.width = `${to - from}%`;
      track.append(bar);
    }
    for (const [kind, value] of [["rank", label.rank_median], ["median", label.median]])
      if (value !== null) track.append(mark(kind, at(value)));
    list.append(
      make(
        "li",
        { title: spoken(label) },
        make("span", { class: "name" }, label.label),
        track,
        make("span", { class: "value" }, fixed(label.term)),
      ),
    );
  }
  return list;
}

function mark(kind, position) {
  const node = make("div", { class: `mark ${kind}` });
  node.style.left = `${position}%`;
  return node;
}

const spoken = (label) =>
  `${label.label}: ${number(label.term)}; usual for this label ${number(label.median)}, ` +
  `for the ${count(label.rank)}. largest ${number(label.rank_median)}`;

// --- many scores ---

const LEFT = 46; // room for the numbers beside the axis, in both charts of the traffic

// One dot an input, in the order of arrival; flagged ones are crosses of another colour.
export function scoresOverTime(width, { time, score, in_distribution: inside }, { taus, edges }) {
  const [top, bottom, right] = [12, 190, width - 10];
  const [low, high] = frameOf(score, edges, taus);
  const x = scale(-0.5, score.length - 0.5, LEFT, right);
  const y = scale(low, high, bottom - 6, top + 6);
  const paths = { in: "", out: "" };
  score.forEach((value, at) => {
    const [px, py] = [x(at).toFixed(1), y(within(value ?? low, low, high)).toFixed(1)];
    if (inside[at]) paths.in += `M${px} ${py}h0`;
    else paths.out += `M${px - 3} ${py - 3}l6 6m0 -6l-6 6`;
  });
  const flagged = inside.filter((one) => !one).length;
  const svg = draw("svg", {
    viewBox: `0 0 ${width} 214`,
    width,
    height: 214,
    role: "img",
    "aria-label": `Scores of the last ${score.length} inputs, ${flagged} of them flagged.`,
  });
  frame(svg, ticks(low, high, 4), y, number, right);
  svg.append(
    draw("path", { class: score.length < 100 ? "dots few" : "dots", d: paths.in }),
    draw("path", { class: "crosses", d: paths.out, "data-n": flagged }),
  );
  for (const tau of taus)
    svg.append(draw("path", { class: "rule", d: `M${LEFT} ${y(tau)}H${right}` }));
  if (taus.length === 1) {
    const at = { class: "strong", x: LEFT + 4, y: y(taus[0]) - 5 };
    svg.append(draw("text", at, `τ ${number(taus[0])}`));
  }
  times(svg, time, x, bottom + 20, width);
  return svg;
}

// The range of the calibration, widened for the traffic by at most its own width to each side.
function frameOf(scores, edges, taus) {
  const known = scores.filter((value) => value !== null);
  const [low, high] = [Math.min(edges[0], ...taus), Math.max(edges.at(-1), ...taus)];
  const room = high - low;
  return [
    within(Math.min(...known, low), low - room, low),
    within(Math.max(...known, high), high, high + room),
  ];
}

// The share flagged in each stretch of inputs, over the band where it is expected.
export function sharesOverTime(width, chunks) {
  const [top, bottom, right] = [10, 110, width - 10];
  const largest = Math.max(...chunks.map(({ n }) => n));
  // The latest stretch is left out until it says something: any share is expected of a few inputs.
  const told = chunks.filter(({ n }) => 2 * n >= largest);
  const shares = told.flatMap(({ share, high }) => [share, high]);
  const most = Math.min(1, 1.1 * Math.max(0.1, ...shares));
  const total = chunks.reduce((sum, { n }) => sum + n, 0);
  const x = scale(0, total, LEFT, right);
  const y = scale(0, most, bottom, top);
  const outside = told.filter(isOutside).length;
  const svg = draw("svg", {
    viewBox: `0 0 ${width} 120`,
    width,
    height: 120,
    role: "img",
    "aria-label": `Share flagged in ${told.length} stretches, ${outside} of them outside the band.`,
  });
  frame(svg, ticks(0, most, 3), y, percent, right);
  let [start, line] = [0, ""];
  const points = told.map((chunk) => {
    const [from, to] = [x(start), x(start + chunk.n)];
    start += chunk.n;
    svg.append(box("band", from, to, y(chunk.high), y(chunk.low)));
    const [px, py] = [(from + to) / 2, y(chunk.share)];
    line += `${line ? "L" : "M"}${px} ${py}`;
    return isOutside(chunk)
      ? draw("path", { class: "point out", d: `M${px} ${py - 6}l6 6l-6 6l-6 -6Z` })
      : draw("circle", { class: "point in", cx: px, cy: py, r: 3.5 });
  });
  svg.append(draw("path", { class: "line", d: line }), ...points);
  return svg;
}

export const isOutside = ({ share, low, high }) => share < low || share > high;

function frame(svg, values, y, text, right) {
  for (const value of values)
    svg.append(
      draw("path", { class: "grid", d: `M${LEFT} ${y(value)}H${right}` }),
      draw("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, text(value)),
    );
}

function times(svg, time, x, y, width) {
  const last = time.length - 1;
  const chosen = new Set(width > 500 && last > 1 ? [0, last >> 1, last] : [0, last]);
  for (const at of chosen) svg.append(words(x(at), y, clock(time[at]), { width }));
}
