// Images and logits that the reader brings, and the way to their verdicts.

import { ask } from "./api.js";
import { byId, count, plural, show } from "./elements.js";
import { showTrouble, showVerdicts, showWaiting } from "./verdict.js";

const MOST_EXPLAINED = 100; // rows; the service explains no more at once
const MOST_IMAGES = 50;

let detector = null;
let refused = null;
let latest = 0; // the newest request; an older answer that comes late is dropped

export function prepare(described, onRefused) {
  [detector, refused] = [described, onRefused];
  const takesImages = Boolean(detector.model?.preprocessing);
  show(byId("images"), takesImages);
  show(byId("no-images"), !takesImages);
  byId("no-images").textContent = detector.model
    ? "The model of this service does not take images; /docs says what it takes."
    : "There is no model here. Start the service with --model model.onnx to drop images.";
  byId("logits-hint").textContent = hint();
  show(byId("example"), Boolean(detector.example));
}

function hint() {
  if (detector.reads === "features")
    return 'This detector reads features: paste {"logits": [[…]], "features": [[…]]}.';
  if (detector.reads !== "logits")
    return `This detector reads ${detector.reads}, which only a binary body can bring: see /docs.`;
  return (
    `${plural(detector.n_inputs, "number")} a row, one for each label, before the sigmoid: ` +
    "separated by commas, spaces or tabs, or as JSON. Several lines are several inputs."
  );
}

// --- logits ---

// The body of a request, or an error that says what is wrong with the text.
export function parse(text, nLabels) {
  const trimmed = text.trim();
  if (!trimmed) throw new SyntaxError("Paste a row of logits first.");
  if (trimmed.startsWith("{")) return parseObject(trimmed);
  let rows = lines(trimmed);
  // One row that was wrapped, as NumPy prints it.
  if (rows.length > 1 && rows.flat().length === nLabels) rows = [rows.flat()];
  const nameOf = (at) => (rows.length > 1 ? `Row ${count(at + 1)}` : "The row");
  rows.forEach((row, at) => check(row, nameOf(at), nLabels));
  return { logits: rows.map((row) => row.map(Number)) };
}

function parseObject(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`This is not JSON: ${error.message}`);
  }
}

function lines(text) {
  return text
    .replaceAll("[", " ")
    .replaceAll("]", "\n")
    .split("\n")
    .map((line) => line.split(/[\s,;]+/).filter(Boolean))
    .filter((row) => row.length);
}

function check(row, name, nLabels) {
  const wrong = row.find((word) => !Number.isFinite(Number(word)));
  if (wrong !== undefined)
    throw new SyntaxError(`${name}: “${wrong.slice(0, 40)}” is not a number.`);
  if (nLabels !== null && row.length !== nLabels)
    throw new SyntaxError(
      `${name} has ${plural(row.length, "number")}; the detector takes ${count(nLabels)}, ` +
        "one for each label.",
    );
}

function scoreLogits() {
  let body;
  complain("");
  try {
    body = parse(byId("logits").value, detector.reads === "logits" ? detector.n_inputs : null);
  } catch (error) {
    complain(error.message);
    return;
  }
  const rows = Array.isArray(body.logits) ? body.logits : [];
  const explain = detector.explains && rows.length <= MOST_EXPLAINED;
  answer(async () => {
    const found = await ask(`/v1/score${explain ? "?explain=true" : ""}`, {
      method: "POST",
      body: JSON.stringify(body),
      type: "application/json",
    });
    const nameOf = (at) => body.ids?.[at] ?? `Row ${count(at + 1)}`;
    return { rows: rowsOf({ ...found, logits: rows }, nameOf), problems: [] };
  });
}

function complain(text) {
  byId("logits-error").textContent = text;
  show(byId("logits-error"), Boolean(text));
  byId("logits").setAttribute("aria-invalid", String(Boolean(text)));
}

// --- images ---

async function predictImage(file) {
  const found = await ask(`/v1/predict${detector.explains ? "?explain=true" : ""}`, {
    method: "POST",
    body: file,
    type: file.type || "application/octet-stream",
  });
  return rowsOf(found, () => file.name || "Image", URL.createObjectURL(file));
}

function predictImages(files) {
  const chosen = [...files].slice(0, MOST_IMAGES);
  if (!chosen.length || !detector?.model?.preprocessing) return;
  answer(async () => {
    const [rows, problems] = [[], []];
    for (const file of chosen) {
      try {
        rows.push(...(await predictImage(file)));
      } catch (error) {
        // One bad file does not spoil the others.
        if (chosen.length === 1 || ![413, 415, 422].includes(error.status)) throw error;
        problems.push(`${file.name}: ${error.message}`);
      }
    }
    return { rows, problems };
  });
}

// --- verdicts ---

// The columns of an answer as rows.
function rowsOf(found, nameOf, picture = null) {
  return found.score.map((score, at) => ({
    name: nameOf(at),
    picture,
    score,
    pValue: found.p_value[at],
    inside: found.in_distribution[at],
    group: found.group?.[at] ?? null,
    logits: found.logits[at] ?? null,
    explanation: found.explanation?.[at] ?? null,
  }));
}

async function answer(work) {
  const mine = ++latest;
  showWaiting();
  try {
    const { rows, problems } = await work();
    if (mine !== latest) return;
    if (rows.length) showVerdicts(rows, problems, detector);
    else showTrouble(problems.join(" "));
  } catch (error) {
    const text = refused(error);
    if (mine === latest) showTrouble(text);
  }
}

function listen() {
  byId("logits-form").addEventListener("submit", (event) => {
    event.preventDefault();
    scoreLogits();
  });
  byId("logits").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) scoreLogits();
  });
  byId("example").addEventListener("click", () => {
    byId("logits").value = detector.example.join(", ");
    byId("example-note").textContent =
      "Made of the medians of the calibration data: ordinary, but not a measured input.";
    complain("");
    byId("logits").focus();
  });
  byId("logits").addEventListener("input", () => (byId("example-note").textContent = ""));
  byId("file").addEventListener("change", (event) => {
    predictImages(event.target.files);
    event.target.value = ""; // so that the same file can be chosen again
  });
  // A file that is dropped beside the field must not replace the page.
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    byId("drop").classList.remove("over");
    predictImages(event.dataTransfer.files);
  });
  byId("drop").addEventListener("dragenter", () => byId("drop").classList.add("over"));
  byId("drop").addEventListener("dragleave", () => byId("drop").classList.remove("over"));
  addEventListener("paste", (event) => predictImages(event.clipboardData.files));
}

listen();
