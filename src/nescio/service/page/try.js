// Send texts, images and logits that the user enters, and show their verdicts.

import { ask } from "./api.js";
import { byId, complain, count, plural, show } from "./elements.js";
import { showTrouble, showVerdicts, showWaiting } from "./verdict.js";

const MOST_EXPLAINED = 100; // rows; the maximum of the service
const MOST_IMAGES = 50;

let detector = null;
let table = null; // the input of a model that takes rows of numbers
let failed = null;
let latest = 0; // the number of the latest request; late answers to older ones are dropped

export function prepare(described, onError) {
  [detector, failed] = [described, onError];
  const takesImages = Boolean(detector.model?.preprocessing);
  const texts = detector.model?.texts;
  const [input, ...more] = detector.model?.inputs ?? [];
  const isTable = input?.shape.length === 2 && input.dtype.startsWith("float") && !more.length;
  table = isTable ? input : null;
  byId("input-title").textContent = texts ? "A text" : takesImages ? "An image" : "";
  byId("text-hint").textContent =
    texts && `The model reads up to ${count(texts.max_tokens)} tokens of it.`;
  show(byId("text-form"), Boolean(texts));
  show(byId("images"), takesImages);
  // Whoever has an image or a text cannot also have what the inner layers make of it.
  show(byId("logits-form"), readsOnlyLogits() || !(texts || takesImages));
  show(byId("no-images"), !takesImages && !texts && !table);
  byId("no-images").textContent = detector.model
    ? "Paste the inputs of the model below, as JSON: " +
      `{"inputs": {${exampleOf(detector.model.inputs)}}}.`
    : "This service has no model: give it the outputs of yours.";
  byId("logits").labels[0].textContent = table ? "Inputs of the model" : "Logits";
  byId("logits-hint").textContent = hint();
  const groups = detector.by === "custom" ? Object.keys(detector.threshold) : [];
  byId("group").replaceChildren(...groups.map((name) => new Option(name)));
  show(byId("group-field"), groups.length > 0);
}

// Inputs by their names, or the columns of a table by theirs, as the JSON of a request has them.
function exampleOf(inputs) {
  const columns = inputs.flatMap((entry) => entry.columns);
  if (!columns.length) return `"${inputs[0].name}": [[…], […]]`;
  return columns.map((name) => `${JSON.stringify(name)}: […]`).join(", ");
}

function post(path, explain, body, type = "application/json", byRow = false) {
  const query = new URLSearchParams({ watch: false, explain }); // what is tried is no traffic
  if (detector.by === "custom" && !byRow) query.set("group", byId("group").value);
  return ask(`${path}?${query}`, { method: "POST", body, type });
}

const readsOnlyLogits = () => detector.scores_from.join() === "logits";

// How many numbers a row must have, if the page knows it.
function width() {
  if (table) return table.shape[1];
  return readsOnlyLogits() ? detector.n_columns.logits : null;
}

function hint() {
  const named = table?.columns.join(", ");
  if (table)
    return (
      `${width() === null ? "Numbers" : plural(width(), "number")} per row, in the order of the ` +
      `columns in training${named ? `: ${named}; or the names of the columns first, in any order` : ""}. ` +
      "Separate them with commas, semicolons, spaces or tabs. Use one line per input. nan is a " +
      "missing value."
    );
  if (!readsOnlyLogits()) {
    const arrays = detector.scores_from
      .filter((name) => !["logits", "features"].includes(name))
      .map((name) => `"${name}": [[…]]`);
    const more = arrays.length ? `, "arrays": {${arrays.join(", ")}}` : "";
    return `Paste the JSON body of a request, such as {"logits": [[…]], "features": [[…]]${more}}.`;
  }
  return (
    `${plural(detector.n_columns.logits, "number")} per row, one per label, before the sigmoid. ` +
    "Separate them with commas, semicolons, spaces or tabs, or paste JSON. Use one line per " +
    "input. -inf marks a masked label."
  );
}

// --- logits ---

// Returns the body of a request, or throws an error that says what is wrong with the text.
function parse(text) {
  const trimmed = text.trim();
  if (!trimmed) throw new SyntaxError(`Paste a row of ${table ? "numbers" : "logits"} first.`);
  if (trimmed.startsWith("{")) {
    try {
      return JSON.parse(trimmed);
    } catch (error) {
      throw new SyntaxError(`This is not JSON: ${error.message}`);
    }
  }
  let rows = byColumn(text) ?? lines(trimmed);
  // NumPy prints a long row on several lines.
  if (rows.length > 1 && rows.flat().length === width()) rows = [rows.flat()];
  const nameOf = (at) => (rows.length > 1 ? `Row ${count(at + 1)}` : "The row");
  rows.forEach((row, at) => check(row, nameOf(at)));
  const numbers = rows.map((row) => row.map(cell));
  return table ? { inputs: { [table.name]: numbers } } : { logits: numbers };
}

// Returns a number as the service takes it: "-inf" is a masked label, and null is NaN. Returns
// undefined if the word is none of these.
function cell(word) {
  const plain = word.replaceAll('"', "").toLowerCase();
  if (plain === "-inf" || plain === "-infinity") return table ? undefined : "-inf";
  if (plain === "nan" || plain === "null") return null;
  return Number.isFinite(Number(word)) ? Number(word) : undefined;
}

function lines(text) {
  return text
    .replace(/^(array|tensor)\(([^]*?)(,\s*\w+=[^]*)?\)$/, "$2") // with a dtype, say
    .replaceAll("[", " ")
    .replaceAll("]", "\n")
    .split("\n")
    // A comma between digits is a decimal sign if something else separates the numbers.
    .map((line) => (/[;\t]/.test(line) ? line.replace(/(?<=\d),(?=\d)/g, ".") : line))
    .map((line) => line.split(/[\s,;]+/).filter(Boolean))
    .filter((row) => row.length);
}

// Returns the model's columns of rows below a line with the names of columns; null without one.
function byColumn(text) {
  const [head, ...rest] = text.split(/\r?\n/).filter((line) => line.trim());
  const separator = ["\t", ";", ","].find((one) => head.includes(one)) ?? " ";
  const split = (line) => line.split(separator).map((word) => word.trim().replaceAll('"', ""));
  const columns = (detector.model?.inputs ?? []).flatMap((entry) => entry.columns);
  const names = split(head);
  const missing = columns.filter((name) => !names.includes(name));
  if (missing.length === columns.length) return null;
  if (missing.length) throw new SyntaxError(`The first line lacks the columns ${missing.join(", ")}.`);
  if (!rest.length) throw new SyntaxError("Paste rows below the names of the columns.");
  const decimal = (word) => (separator === "," ? word : word.replace(",", "."));
  return rest.map(split).map((row) => columns.map((name) => decimal(row[names.indexOf(name)] || "nan")));
}

function check(row, name) {
  const wrong = row.find((word) => cell(word) === undefined);
  if (wrong !== undefined)
    throw new SyntaxError(`${name}: “${wrong.slice(0, 40)}” is not a number.`);
  const [who, what] = table ? ["model", "column"] : ["detector", "label"];
  if (width() !== null && row.length !== width())
    throw new SyntaxError(
      `${name} has ${plural(row.length, "number")}; the ${who} needs ${count(width())}, ` +
        `one per ${what}.${table ? " Write nan for an empty cell." : ""}`,
    );
}

function scoreLogits() {
  let body;
  complain("logits", "");
  try {
    body = parse(byId("logits").value);
  } catch (error) {
    complain("logits", error.message);
    showTrouble("No verdict: see what is wrong with the input.");
    return;
  }
  const rows = Array.isArray(body.logits) ? body.logits : [];
  const [sent] = [body.logits, ...Object.values(body.inputs ?? {})].filter(Array.isArray);
  const explain = detector.explains && !(sent?.length > MOST_EXPLAINED);
  const path = body.logits || !detector.model ? "/v1/score" : "/v1/predict";
  answer(async () => {
    const byRow = Boolean(body.groups); // the service takes one group of all, or these
    const found = await post(path, explain, JSON.stringify(body), undefined, byRow);
    const nameOf = (at) => body.ids?.[at] ?? `Row ${count(at + 1)}`;
    return { rows: rowsOf({ logits: rows, ...found }, nameOf), problems: [] };
  });
}

// --- texts ---

function predictText() {
  const text = byId("text").value;
  complain("text", text.trim() ? "" : "Write a text first.");
  if (!text.trim()) {
    showTrouble("No verdict: there is no text.");
    return;
  }
  answer(async () => {
    const found = await post("/v1/predict", detector.explains, JSON.stringify({ texts: [text] }));
    return { rows: rowsOf(found, () => "Text"), problems: [] };
  });
}

// --- images ---

async function predictImage(file) {
  // The service tells what the file is.
  const found = await post("/v1/predict", detector.explains, file, "application/octet-stream");
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
        // One bad file does not stop the others.
        if (chosen.length === 1 || ![413, 415, 422].includes(error.status)) throw error;
        problems.push(`${file.name}: ${error.message}`);
      }
    }
    return { rows, problems };
  });
}

// --- verdicts ---

// Turns the columns of an answer into rows.
function rowsOf(found, nameOf, picture = null) {
  return found.score.map((score, at) => ({
    name: nameOf(at),
    picture,
    score,
    pValue: found.p_value[at],
    inside: found.in_distribution[at],
    group: found.group?.[at] ?? null,
    truncated: found.truncated?.[at] ?? false,
    logits: found.logits[at]?.map((logit) => (logit === "-inf" ? -Infinity : logit)) ?? null,
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
    const text = failed(error);
    if (mine === latest) showTrouble(text);
  }
}

for (const [field, work] of Object.entries({ logits: scoreLogits, text: predictText })) {
  byId(`${field}-form`).addEventListener("submit", (event) => {
    event.preventDefault();
    work();
  });
  byId(field).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) work();
  });
}
byId("file").addEventListener("change", (event) => {
  predictImages(event.target.files);
  event.target.value = ""; // so that the user can choose the same file again
});
// Without this, the browser opens a file that is dropped beside the field.
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  predictImages(event.dataTransfer.files);
});
byId("drop").addEventListener("dragenter", () => byId("drop").classList.add("over"));
byId("drop").addEventListener("dragleave", () => byId("drop").classList.remove("over"));
addEventListener("paste", (event) => predictImages(event.clipboardData.files));
