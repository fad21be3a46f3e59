// Shows the verdict on one or several inputs: in words, by parts and per label.

import { byId, count, fixed, legend, make, number, percent, plural } from "./elements.js";

const MOST_ROWS = 500;
const MOST_LABELS = 12;

let pictures = []; // object URLs of the images of the rows shown

export function showWaiting() {
  byId("verdict").replaceChildren(make("p.waiting", "Asking the service …"));
  byId("verdict").setAttribute("aria-busy", "true");
}

export function showTrouble(text) {
  release([]);
  settle(make("p.trouble", text));
  for (const part of ["problems", "several", "details"]) byId(part).replaceChildren();
}

// The most suspicious one comes first.
const suspicion = (one, other) =>
  one.pValue - other.pValue || (one.score ?? -Number.MAX_VALUE) - (other.score ?? -Number.MAX_VALUE);

export function showVerdicts(unsorted, problems, detector) {
  const rows = unsorted.toSorted(suspicion);
  release(rows.map((row) => row.picture).filter(Boolean));
  byId("problems").replaceChildren(...problems.map((text) => make("p.trouble", text)));
  byId("several").replaceChildren(rows.length > 1 ? table(rows, detector) : "");
  showRow(rows[0], detector, rows.length);
}

function release(kept) {
  pictures.filter((url) => !kept.includes(url)).forEach((url) => URL.revokeObjectURL(url));
  pictures = kept;
}

function settle(...children) {
  byId("verdict").removeAttribute("aria-busy");
  byId("verdict").replaceChildren(...children);
}

let selected = null; // the row whose details are shown

function showRow(row, detector, nRows) {
  selected = row;
  const cutOff =
    row.truncated &&
    `The text is longer than ${count(detector.model.texts.max_tokens)} tokens: the model has seen only a part of it.`;
  settle(
    make("div", { class: `verdict ${row.inside ? "in" : "out"}` },
      row.picture && make("img", { src: row.picture, alt: `The image ${row.name}` }),
      make("div",
        nRows > 1 || row.picture ? make("p.which", row.name) : null,
        make("p.word", row.inside ? "✓ In-distribution" : "✗ OUT: do not trust"),
        make("p", inWords(row, detector)),
        cutOff ? make("p.aside", cutOff) : null,
      ),
    ),
  );
  byId("details").replaceChildren(
    facts(row, detector),
    predicted(row, detector),
    ...parts(row, detector),
    ...explained(row, detector),
  );
  if (row.explanation || !row.explain || !detector.explains) return;
  row.explain().then(
    (explanation) => {
      row.explanation = explanation;
      if (selected === row) showRow(row, detector, nRows);
    },
    (error) => selected === row && byId("details").append(make("p.trouble", error.message)),
  );
}

// --- in words ---

function inGroup({ group }, { by }) {
  if (group === null) return "";
  return by === "label_count" ? ` with ${group} predicted labels` : ` of group ${group}`;
}

function inWords(row, detector) {
  if (row.score === null) return "It has no score because its logits contain NaN or infinity.";
  // The row is compared with all calibration inputs, or with those of its group.
  const n = detector.n_by_group[row.group ?? "all"];
  const p = row.pValue;
  if (p < 1.5 / (n + 1))
    return `None of the ${plural(n, "calibration input")}${inGroup(row, detector)} has such a low score.`;
  if (p < 0.1) return `About 1 in ${count(Math.round(1 / p))} in-distribution inputs scores this low.`;
  const share = p < 0.995 ? `${Math.round(100 * p)} in 100` : "nearly all";
  return `An ordinary score: ${share} in-distribution inputs score this low or lower.`;
}

function facts(row, detector) {
  const fact = (name, value) => make("div", make("dt", name), make("dd", value));
  return make("dl.facts",
    fact("p-value", number(row.pValue)),
    fact("Flagged below", number(1 - detector.tpr)),
    fact("Score", number(row.score)),
    fact(`Threshold${inGroup(row, detector)}`, number(detector.threshold[row.group ?? "all"])),
  );
}

function predicted(row, detector) {
  if (!row.logits) return "";
  const labels = row.logits
    .map((logit, at) => ({ name: detector.label_names?.[at] ?? `label ${at}`, logit }))
    .sort((one, other) => rank(other) - rank(one));
  const chosen = labels.filter(({ logit }) => logit > 0);
  const list = make("ul.labels", { "aria-label": "Predicted labels" });
  for (const { name, logit } of chosen.slice(0, MOST_LABELS))
    list.append(make("li", make("span", name), make("b", probability(logit))));
  if (chosen.length > MOST_LABELS)
    list.append(make("li", `and ${count(chosen.length - MOST_LABELS)} more`));
  const top = labels[0];
  const likeliest = `${top?.name}, ${probability(top?.logit)}`;
  return make("section", { class: row.inside ? "" : "doubtful" },
    make("h3", "Predicted labels", row.inside ? null : make("span", " (do not trust them)")),
    chosen.length
      ? list
      : make("p", `The model predicts no label. The most likely label is ${likeliest}.`),
  );
}

// Masked labels (-Infinity) and missing values (null) come last; they have no difference.
const rank = ({ logit }) => Math.max(logit ?? -Number.MAX_VALUE, -Number.MAX_VALUE);

const probability = (logit) => percent(1 / (1 + Math.exp(-logit)));

// --- figures ---

// What the parts of a combination ask, for readers who do not know their names.
const ASKS = {
  joint_energy: "Is the model sure of its labels?",
  label_neighbours: "Does it resemble training inputs with these labels?",
  linear_probe: "Do its features show any known label?",
  out_of_range: "Are the values of the LAYER in their usual ranges?",
};

const isTable = (model) => Boolean(model?.inputs.some(({ columns }) => columns.length));

function parts({ inside, explanation }, { model }) {
  const first = explanation?.parts?.[0];
  if (!first) return [];
  const words = `No: this is ${percent(first.share ?? 1)} of the evidence.`;
  const asks = ({ detector }) => {
    const layer = detector.match(/layer=(\w+)/)?.[1] ?? (isTable(model) ? "columns" : "features");
    return ASKS[detector.split("(")[0]]?.replace("LAYER", layer) ?? detector;
  };
  return [
    make("figure",
      make("h3", inside ? "What was checked " : "What decided ", make("span", "share of the evidence, p-value")),
      inside ? null : make("p", make("b", asks(first)), ` ${words} ${first.summary}`),
      make("ol.bars.parts", explanation.parts.map((part) => partBar(part, asks(part)))),
    ),
  ];
}

function partBar(part, question) {
  const bar = make("div.bar");
  bar.style.width = `${100 * (part.share ?? 0)}%`;
  return make("li", { title: part.detector },
    make("span.name", question), make("div.track", bar), make("span.value", number(part.p_value)),
  );
}

function explained(row, detector) {
  if (!row.explanation) {
    const why = detector.explains
      ? "Asking the service for the reasons …"
      : `The score of ${detector.detector} is not a sum over labels, so it has no explanation.`;
    return [make("p.aside", why)];
  }
  const { term, summary, labels } = row.explanation;
  if (!labels.length) return row.explanation.parts ? [] : [make("p", summary)];
  const shown = labels.slice(0, MOST_LABELS);
  const left = (row.logits?.length ?? labels.length) - shown.length;
  const more = left > 0 ? `${plural(left, "other label is", "other labels are")} not shown.` : "";
  const [holder, title] = isTable(detector.model) ? ["details", "summary"] : ["figure", "h3"];
  return [
    make(holder,
      make(title, `Each label’s ${term}`),
      row.explanation.parts ? null : make("p", summary),
      labelBars(shown),
      legend([
        ["stroke", "median of this label"],
        ["ring", `median of the largest ${term}, the second largest, …`],
      ]),
      more ? make("figcaption", more) : null,
    ),
  ];
}

function labelBars(labels) {
  const values = labels.flatMap(({ term, median, rank_median }) => [term, median, rank_median]);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const at = (value) => (100 * (value - low)) / (high - low || 1);
  return make("ol.bars",
    labels.map((label) =>
      make("li",
        make("span.name", label.label),
        make("div.track", marks(label, at)),
        make("span.value", fixed(label.term)),
      ),
    ),
  );
}

function marks({ term, median, rank_median: rankMedian }, at) {
  const place = (kind, value, from = value) => {
    if (value === null) return null;
    const node = make("div", { class: kind });
    node.style.left = `${Math.min(at(from), at(value))}%`;
    if (from !== value) node.style.width = `${Math.abs(at(value) - at(from))}%`;
    return node;
  };
  return [
    place("mark zero", 0),
    place("bar", term, 0),
    place("mark rank", rankMedian),
    place("mark median", median),
  ];
}

// --- several inputs ---

function table(rows, detector) {
  const flagged = rows.filter((row) => !row.inside).length;
  const body = make("tbody");
  rows.slice(0, MOST_ROWS).forEach((row, at) => {
    const choose = (event) => {
      body.querySelector("[aria-pressed=true]").setAttribute("aria-pressed", "false");
      event.currentTarget.setAttribute("aria-pressed", "true");
      showRow(row, detector, rows.length);
    };
    const pressed = { "aria-pressed": String(at === 0) };
    const button = make("button", { type: "button" }, pressed, row.name);
    button.addEventListener("click", choose);
    body.append(
      make("tr", { class: row.inside ? "in" : "out" },
        make("th", { scope: "row" }, button),
        make("td", make("b", row.inside ? "✓ in" : "✗ OUT")),
        make("td", number(row.pValue)),
        make("td", number(row.score)),
      ),
    );
  });
  const titles = ["Input", "Verdict", "p-value", "Score"];
  const head = make("tr", titles.map((title) => make("th", { scope: "col" }, title)));
  const cut = rows.length > MOST_ROWS ? `; the first ${count(MOST_ROWS)} are shown` : "";
  return make("div.scroll", { tabindex: "0", role: "region", "aria-label": "All inputs" },
    make("table",
      make("caption", `${count(flagged)} of ${count(rows.length)} flagged${cut}.`),
      make("thead", head),
      body,
    ),
  );
}
