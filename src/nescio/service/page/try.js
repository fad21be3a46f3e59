// Send texts, images and rows that the user enters, and show their verdicts.

import { ask } from "./api.js";
import { byId, complain, count, plural, show } from "./elements.js";
import { showTrouble, showVerdicts, showWaiting } from "./verdict.js";

const MOST_EXPLAINED = 100; // rows; the maximum of the service
const MOST_IMAGES = 50;
const MOST_LISTED = 8; // notes, and words in one
// As for pandas and in files; "none" and "na" may be words.
const MISSING = ["", "nan", "NaN", "NA", "N/A", "n/a", "null", "NULL", "None", "<NA>", "NaT", "#N/A"];

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
  show(byId("kind-field"), !format || Boolean(format.isLogits));
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
    const body = (rows) => ({
      inputs: Object.fromEntries(named.map(({ name }, at) => [name, rows.map((row) => row[at])])),
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
  if (path === "/v1/score" && byId("kind").value) query.set("from_probs", byId("kind").value);
  if (detector.by === "custom" && !byRow) query.set("group", byId("group").value);
  return ask(`${path}?${query}`, { method: "POST", body, type });
}

// --- rows ---

// Returns the body of a request and notes on it, or throws an error that says what is wrong.
function parse(text) {
  const trimmed = text.trim();
  if (!trimmed) throw new SyntaxError(`Paste a row of ${format?.isLogits ? "logits" : "cells"} first.`);
  const areRecords = format && /^\[\s*\{/.test(trimmed); // what pandas calls orient="records"
  if (!areRecords && (trimmed.startsWith("{") || !format)) return { body: json(trimmed), notes: [] };
  const read = areRecords ? fromRecords(json(trimmed)) : cellsOf(text);
  const names = format.columns.map(({ name }) => name).filter((name) => name !== undefined);
  const words = read[0].filter((word) => number(word) === undefined);
  const areWords = !names.length || format.columns.every(({ isWord }) => isWord); // so may data be
  const isHead = words.some((word) => names.includes(word)) || (!areWords && words.length === read[0].length);
  const { rows, notes, ids } = areRecords || isHead ? named(read) : { rows: read, notes: [] };
  if (rows === read && names.length && !format.isLogits)
    notes.push(`No names: read as ${cut(names).join(", ")}.`);
  if (!format.isLogits) checkCommas(rows.flatMap((row) => row.filter((_, at) => !format.columns[at]?.isWord)));
  const nameOf = (at) => (rows.length > 1 ? `Row ${count(at + 1)}` : "The row");
  const cells = rows.map((row, at) => checked(row, nameOf(at), notes));
  return { body: { ...format.body(cells), ...(ids && { ids }) }, notes };
}

const cut = (words) => (words.length > MOST_LISTED ? [...words.slice(0, MOST_LISTED), "…"] : words);
const listed = (words) => cut(words.map((word) => `“${word.slice(0, 40)}”`)).join(", ");

function json(text) {
  const value = JSON.parse(text); // of entries with the same name, it keeps the last
  const [names, kept] = [text, JSON.stringify(value)].map((one) => {
    const texts = [...one.matchAll(/("(?:[^"\\]|\\.)*")(\s*:)?/g)];
    return texts.filter(([, , colon]) => colon).map(([, name]) => JSON.parse(name)).sort();
  });
  const twice = names.find((name, at) => name !== kept[at]);
  if (twice !== undefined) throw new SyntaxError(`more than one entry is named ${listed([twice])}.`);
  return value;
}

function fromRecords(records) {
  const names = [...new Set(records.flatMap((record) => Object.keys(record)))];
  return [names, ...records.map((record) => names.map((name) => String(record[name] ?? "")))];
}

// Returns the cells of a pasted table, or of what NumPy and torch print.
function cellsOf(text) {
  if (/^\s*(array\(|tensor\()?\[/.test(text)) {
    const rows = text.replace(/(,\s*\w+=[^]*)?\)\s*$/, "").replace(/^[^[]*/, "").replaceAll("[", " ").split("]");
    const trimmed = rows.map((row) => row.replace(/^[\s,]+|[\s,]+$/g, ""));
    return trimmed.filter(Boolean).map((row) => row.split(/\s*,\s*|\s+/));
  }
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  const separator = ["\t", ";", ","].find((mark) => lines[0].includes(mark));
  const between = new RegExp(`${separator ?? "\\s+"}(?=(?:[^"]*"[^"]*")*[^"]*$)`); // not in quotes
  const plain = (cell) => cell.trim().replace(/^"(.*)"$/, "$1").replaceAll('""', '"');
  return lines.map((line) => (separator ? line : line.trim()).split(between).map(plain));
}

// Returns the cells of rows in the order of the columns, and the ids among the other columns.
function named([first, ...rows]) {
  const names = format.columns.map(({ name }) => name);
  const column = (name) => rows.map((row) => row[first.indexOf(name)]);
  const [missing, other] = [names, first].map((some, at) =>
    some.filter((word) => ![first, names][at].includes(word)),
  );
  const id = other.find((name) => /(^|_)id$/i.test(name) && new Set(column(name)).size === rows.length);
  const unused = other.filter((name) => name !== id);
  const notes = unused.length ? [`Not used, because the model does not read it: ${listed(unused)}.`] : [];
  if (missing.length)
    throw new SyntaxError(`No column is named ${listed(missing)}; the first line has ${listed(first)}.`);
  if (!rows.length) throw new SyntaxError("Paste rows below the names of the columns.");
  const twice = names.filter((name) => first.indexOf(name) !== first.lastIndexOf(name));
  if (twice.length) throw new SyntaxError(`More than one column is named ${listed(twice)}.`);
  const at = rows.findIndex((row) => row.length !== first.length);
  if (at >= 0)
    throw new SyntaxError(
      `Row ${count(at + 1)} has ${plural(rows[at].length, "cell")}, but the first line has ` +
        `${count(first.length)}.`,
    );
  return { rows: rows.map((row) => names.map((name) => row[first.indexOf(name)])), notes, ids: id && column(id) };
}

// Rejects 1,234 or, if a number such as 12,5 shows that a comma is the decimal sign, 1.234.
function checkCommas(cells) {
  const unclear = (mark) => (cell) => new RegExp(`^[-+]?[1-9]\\d{0,2}\\${mark}\\d{3}$`).test(cell);
  const isDecimal = cells.some((cell) => /^[-+]?\d*,\d+$/.test(cell) && !unclear(",")(cell));
  const [mark, sign] = isDecimal ? [".", ","] : [",", "."];
  const cell = cells.find(unclear(mark));
  if (!cell) return;
  const decimal = cell.replace(mark, sign).replace(/0{1,2}$/, "");
  throw new SyntaxError(`Write “${cell}” as ${cell.replace(mark, "")} or as ${decimal}: it may be either.`);
}

// Returns a number as the service takes it: "-inf" is a masked label, and null is NaN. Returns
// undefined if the word is none of these.
function number(word) {
  const plain = word.replaceAll('"', "");
  if (plain === "" && format.isLogits) return undefined;
  if (/^-inf(inity)?$/i.test(plain)) return format.isLogits ? "-inf" : undefined;
  if (MISSING.includes(plain)) return null;
  if (/^(true|false)$/i.test(plain) && !format.isLogits) return Number(/true/i.test(plain));
  const value = Number(word.replace(/^([-+]?\d*),(?=\d+(e|$))/i, "$1.")); // a comma is a decimal sign
  return Number.isFinite(value) ? value : undefined;
}

function checked(row, name, notes) {
  const { columns, width, isLogits } = format;
  const wordOf = (word) => (MISSING.includes(word) ? null : word);
  const cells = row.map((word, at) => (columns[at]?.isWord ? wordOf(word) : number(word)));
  const nameOf = (at) => (isLogits ? undefined : columns[at]?.name);
  if (width && cells.length !== width)
    throw new SyntaxError(
      `${name} has ${plural(cells.length, "cell")}; the ` +
        `${isLogits ? "detector" : "model"} needs ${count(width)}, one per ` +
        `${isLogits ? "label" : "column"}.`,
    );
  const wrong = cells.indexOf(undefined);
  if (wrong >= 0)
    throw new SyntaxError(
      `${name}${nameOf(wrong) ? `, column ${nameOf(wrong)}` : ""}: ` +
        (row[wrong] ? `${listed([row[wrong]])} is not a number.` : `cell ${wrong + 1} is empty.`),
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
  byId("rows-notes").textContent = notes.slice(0, MOST_LISTED).join(" ");
  const areLogits = Array.isArray(body.logits) && byId("kind").value !== "true";
  const [sent] = [body.logits, ...Object.values(body.inputs ?? {})].filter(Array.isArray);
  const explain = detector.explains && !(sent?.length > MOST_EXPLAINED);
  const path = body.logits || !detector.model ? "/v1/score" : "/v1/predict";
  const byRow = Boolean(body.groups); // the service takes one group of all, or these
  const send = (some, why) => post(path, why, JSON.stringify(some), undefined, byRow);
  answer(async () => {
    const found = await send(body, explain);
    const nameOf = (at) => body.ids?.[at] ?? `Row ${count(at + 1)}`;
    const shown = rowsOf({ logits: areLogits ? body.logits : [], ...found }, nameOf);
    for (const [at, row] of shown.entries())
      row.explain = async () => (await send(rowOf(body, at), true)).explanation[0];
    return { rows: shown, problems: (found.warnings ?? []).map(forPage) };
  });
}

// Returns the body of a request for one of its rows.
function rowOf({ label_names, ...body }, at) {
  const one = (value) => (Array.isArray(value) ? [value[at]] : rowOf(value, at));
  const entries = Object.entries(body).map(([name, value]) => [name, one(value)]);
  return { label_names, ...Object.fromEntries(entries) };
}

// --- texts ---

function predictText() {
  const text = byId("text").value;
  complain("text", text.trim() ? "" : "Write a text first.");
  if (!text.trim()) return showTrouble("No verdict: there is no text.");
  answer(async () => {
    const found = await post("/v1/predict", detector.explains, JSON.stringify({ texts: [text] }));
    return { rows: rowsOf(found, () => "Text"), problems: [] };
  });
}

// --- images ---

function predictImages(files) {
  const chosen = [...files].slice(0, MOST_IMAGES);
  if (!chosen.length || !detector?.model?.preprocessing) return;
  answer(async () => {
    const [rows, problems] = [[], []];
    for (const file of chosen) {
      try {
        // The service tells what the file is.
        const found = await post("/v1/predict", detector.explains, file, "application/octet-stream");
        rows.push(...rowsOf(found, () => file.name || "Image", URL.createObjectURL(file)));
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

// The service names a part of the address; whoever reads the page chooses in a field.
const forPage = (text) => text
  .replace(/Add \?from_probs=true .* logits\./, "Choose probabilities under Values, above.")
  .replace("leave out ?from_probs=true.", "choose logits under Values, above.");

async function answer(work) {
  const mine = ++latest;
  showWaiting();
  try {
    const { rows, problems } = await work();
    if (mine !== latest) return;
    if (rows.length) showVerdicts(rows, problems, detector);
    else showTrouble(problems.join(" "));
  } catch (error) {
    // The service counts from 0, the page from 1.
    const fromOne = (part) => part.replace(/\d+/g, (at) => Number(at) + 1);
    const places = /\b(row|column) \d+|rows: \d[\d, ]*/g;
    const text = forPage(failed(error)).replace(places, fromOne).replace(" (counted from 0)", "");
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
