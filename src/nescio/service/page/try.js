// Send texts, images and rows that the user enters, and show their verdicts.

import { ask } from "./api.js";
import { byId, complain, count, plural, show } from "./elements.js";
import { showTrouble, showVerdicts, showWaiting } from "./verdict.js";

const MOST_EXPLAINED = 100; // rows; the maximum of the service
const MOST_IMAGES = 50;
const MOST_NOTES = 6;

let detector = null;
let format = null; // of a pasted row; null if only JSON can say it
let failed = null;
let latest = 0; // the number of the latest request; late answers to older ones are dropped

export function prepare(described, onError) {
  [detector, failed] = [described, onError];
  format = formatOf(detector);
  const takesImages = Boolean(detector.model?.preprocessing);
  const texts = detector.model?.texts;
  byId("input-title").textContent = texts ? "A text" : takesImages ? "An image" : "";
  byId("text-hint").textContent =
    texts && `The model reads up to ${count(texts.max_tokens)} tokens of it.`;
  show(byId("text-form"), Boolean(texts));
  show(byId("images"), takesImages);
  // Whoever has an image or a text cannot also have what the inner layers make of it.
  show(byId("rows-form"), Boolean(format?.isLogits) || !(texts || takesImages));
  byId("rows").labels[0].textContent = format ? (format.isLogits ? "Logits" : "Table rows") : "JSON";
  byId("rows-hint").textContent = hint();
  byId("rows").placeholder = example();
  show(byId("example"), Boolean(example()));
  const groups = detector.by === "custom" ? Object.keys(detector.threshold) : [];
  byId("group").replaceChildren(...groups.map((name) => new Option(name)));
  show(byId("group-field"), groups.length > 0);
}

// What a pasted row holds: names and examples of its columns, as far as they are known, and which
// of them are words. `body` makes a request of the cells of rows.
function formatOf({ model, scores_from: reads, n_columns: sizes, label_names: labels }) {
  const inputs = model?.inputs ?? [];
  const named = inputs.flatMap(({ dtype, columns, example: row }) =>
    columns.map((name, at) => ({ name, isWord: dtype === "str", example: row[at] })),
  );
  if (named.length) {
    const column = (rows, at) => rows.map((row) => row[at]);
    const body = (rows) => ({
      inputs: Object.fromEntries(named.map(({ name }, at) => [name, column(rows, at)])),
    });
    return { columns: named, width: named.length, body };
  }
  const [{ name, shape, dtype, example: row } = {}, ...more] = inputs;
  if (shape?.length === 2 && dtype.startsWith("float") && !more.length) {
    const columns = row.map((value) => ({ example: value }));
    return { columns, width: shape[1], body: (rows) => ({ inputs: { [name]: rows } }) };
  }
  if (reads.join() !== "logits") return null;
  const columns = (labels ?? []).map((label) => ({ name: label }));
  return { columns, width: sizes.logits, body: (rows) => ({ logits: rows }), isLogits: true };
}

function hint() {
  const { model, scores_from: reads } = detector;
  if (format && !format.isLogits)
    return (
      "Paste rows of a spreadsheet or a CSV file" +
      `${format.columns[0]?.name ? " below the names of their columns, in any order" : ""}. ` +
      (format.width ? `The model reads ${plural(format.width, "column")}. ` : "") +
      "Commas, semicolons or tabs separate them. An empty cell is a missing value."
    );
  const entries = (names) => names.map((name) => `"${name}": [[…]]`).join(", ");
  const inputs = model && `{"inputs": {${entries(model.inputs.map(({ name }) => name))}}}`;
  if (format)
    return (
      `${model ? "" : "This service has no model: give it the outputs of yours. "}` +
      `${plural(format.width, "number")} per row, one per label, before the sigmoid. Separate ` +
      "them with commas, semicolons, spaces or tabs, or paste JSON. Use one line per input. " +
      `-inf marks a masked label.${inputs ? ` Or paste inputs of the model: ${inputs}.` : ""}`
    );
  const arrays = entries(reads.filter((name) => !["logits", "features"].includes(name)));
  const outputs = `{"logits": [[…]], "features": [[…]]${arrays && `, "arrays": {${arrays}}`}}`;
  return `Paste the JSON body of a request, such as ${inputs ?? outputs}.`;
}

// A line with the names of the columns, if they have some, and an ordinary row.
function example() {
  const columns = format?.columns ?? [];
  if (!columns.some((column) => column.example !== undefined)) return "";
  const quoted = (cell) => (/[",]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const line = (key) => columns.map((column) => quoted(String(column[key] ?? ""))).join(",");
  return columns[0].name === undefined ? line("example") : `${line("name")}\n${line("example")}`;
}

function post(path, explain, body, type = "application/json", byRow = false) {
  const query = new URLSearchParams({ watch: false, explain }); // what is tried is no traffic
  if (detector.by === "custom" && !byRow) query.set("group", byId("group").value);
  return ask(`${path}?${query}`, { method: "POST", body, type });
}

// --- rows ---

// Returns the body of a request and notes on it, or throws an error that says what is wrong.
function parse(text) {
  const trimmed = text.trim();
  if (!trimmed) throw new SyntaxError(`Paste a row of ${format?.isLogits ? "logits" : "cells"} first.`);
  if (trimmed.startsWith("{") || !format) {
    try {
      return { body: JSON.parse(trimmed), notes: [] };
    } catch (error) {
      throw new SyntaxError(`This is not JSON: ${error.message}`);
    }
  }
  const { rows, notes } = table(text.split(/\r?\n/).filter((line) => line.trim())) ?? numbers(trimmed);
  const nameOf = (at) => (rows.length > 1 ? `Row ${count(at + 1)}` : "The row");
  const cells = rows.map((row, at) => checked(row, nameOf(at), notes));
  return { body: format.body(cells), notes };
}

// Returns the cells of rows in the order of the columns; null for plain numbers without names.
function table([head, ...rest]) {
  const names = format.columns.map(({ name }) => name);
  const first = split(head);
  const hasHead = first.some((word) => names.includes(word) && number(word) === undefined);
  if (!hasHead && (format.isLogits || /[[(]/.test(head) || !/[,;\t]/.test(head))) return null;
  if (!hasHead) return { rows: [head, ...rest].map((line) => decimal(split(line), line)), notes: [] };
  const named = (words) => words.map((word) => `“${word.slice(0, 40)}”`).join(", ");
  const [missing, other] = [names, first].map((some, at) =>
    some.filter((word) => ![first, names][at].includes(word)),
  );
  const notes = other.length ? [`Not used, because the model does not read it: ${named(other)}.`] : [];
  if (missing.length)
    throw new SyntaxError(`The first line lacks ${named(missing)}. ${notes.join(" ")}`.trim());
  if (!rest.length) throw new SyntaxError("Paste rows below the names of the columns.");
  const rows = rest.map((line, at) => {
    const row = decimal(split(line, head), head);
    if (row.length !== first.length)
      throw new SyntaxError(
        `Row ${count(at + 1)} has ${plural(row.length, "cell")}, but the first line has ` +
          `${count(first.length)}.`,
      );
    return names.map((name) => row[first.indexOf(name)]);
  });
  return { rows, notes };
}

// Splits a line at the separator of the first one, but not within quotes.
function split(line, head = line) {
  const separator = ["\t", ";", ","].find((mark) => head.includes(mark)) ?? "\\s+";
  const cells = line.split(new RegExp(`${separator}(?=(?:[^"]*"[^"]*")*[^"]*$)`));
  return cells.map((cell) => cell.trim().replace(/^"(.*)"$/, "$1").replaceAll('""', '"'));
}

// A comma between digits is a decimal sign if something else separates the numbers.
const decimal = (row, line) =>
  /[;\t]/.test(line) ? row.map((cell) => cell.replace(/^([-+]?\d*),(?=\d+(e|$))/i, "$1.")) : row;

// Returns rows of numbers as people and programs write them: NumPy prints a row on several lines.
function numbers(text) {
  const rows = text
    .replace(/^(array|tensor)\(([^]*?)(,\s*\w+=[^]*)?\)$/, "$2") // with a dtype, say
    .replaceAll("[", " ")
    .replaceAll("]", "\n")
    .split("\n")
    .map((line) => (/[;\t]/.test(line) ? line.replace(/(?<=\d),(?=\d)/g, ".") : line))
    .map((line) => line.split(/[\s,;]+/).filter(Boolean))
    .filter((row) => row.length);
  const isOne = rows.length > 1 && rows.flat().length === format.width;
  return { rows: isOne ? [rows.flat()] : rows, notes: [] };
}

// Returns a number as the service takes it: "-inf" is a masked label, and null is NaN. Returns
// undefined if the word is none of these.
function number(word) {
  const plain = word.replaceAll('"', "").toLowerCase();
  if (plain === "-inf" || plain === "-infinity") return format.isLogits ? "-inf" : undefined;
  if (["", "na", "nan", "null"].includes(plain)) return null;
  if (["true", "false"].includes(plain) && !format.isLogits) return Number(plain === "true");
  return Number.isFinite(Number(word)) ? Number(word) : undefined;
}

function checked(row, name, notes) {
  const { columns, width, isLogits } = format;
  const cells = row.map((word, at) => (columns[at]?.isWord ? word || null : number(word)));
  const nameOf = (at) => (isLogits ? undefined : columns[at]?.name);
  const wrong = cells.indexOf(undefined);
  if (wrong >= 0)
    throw new SyntaxError(
      `${name}${nameOf(wrong) ? `, column ${nameOf(wrong)}` : ""}: ` +
        `“${row[wrong].slice(0, 40)}” is not a number.`,
    );
  if (width && cells.length !== width)
    throw new SyntaxError(
      `${name} has ${plural(cells.length, isLogits ? "number" : "cell")}; the ` +
        `${isLogits ? "detector" : "model"} needs ${count(width)}, one per ` +
        `${isLogits ? "label" : "column"}.`,
    );
  const missing = cells.flatMap((cell, at) => (cell === null ? [nameOf(at) ?? `number ${at + 1}`] : []));
  if (missing.length && !isLogits) notes.push(`${name} has no ${missing.join(", ")}.`);
  return cells;
}

function scoreRows() {
  let parsed;
  complain("rows", "");
  byId("rows-notes").textContent = "";
  try {
    parsed = parse(byId("rows").value);
  } catch (error) {
    complain("rows", error.message);
    showTrouble("No verdict: see what is wrong with the input.");
    return;
  }
  const { body, notes } = parsed;
  byId("rows-notes").textContent = notes.slice(0, MOST_NOTES).join(" ");
  const rows = Array.isArray(body.logits) ? body.logits : [];
  const [sent] = [body.logits, ...Object.values(body.inputs ?? {})].filter(Array.isArray);
  const explain = detector.explains && !(sent?.length > MOST_EXPLAINED);
  const path = body.logits || !detector.model ? "/v1/score" : "/v1/predict";
  answer(async () => {
    const byRow = Boolean(body.groups); // the service takes one group of all, or these
    const found = await post(path, explain, JSON.stringify(body), undefined, byRow);
    const nameOf = (at) => body.ids?.[at] ?? `Row ${count(at + 1)}`;
    return { rows: rowsOf({ logits: rows, ...found }, nameOf), problems: found.warnings ?? [] };
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

for (const [field, work] of Object.entries({ rows: scoreRows, text: predictText })) {
  byId(`${field}-form`).addEventListener("submit", (event) => {
    event.preventDefault();
    work();
  });
  byId(field).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) work();
  });
}
byId("example").addEventListener("click", () => {
  byId("rows").value = example();
  scoreRows();
});
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
