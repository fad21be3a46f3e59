// The page at /: what the service is, and which parts of the page are shown.

import { Refused, ask, keepToken, token } from "./api.js";
import { byId, count, percent, show } from "./elements.js";
import { watch } from "./traffic.js";
import { prepare } from "./try.js";

let watching = null;
let starts = 0; // a start that has been overtaken does nothing more

function introduce(detector) {
  document.title = `nescio: ${detector.detector}`;
  const params = Object.entries(detector.params)
    .filter(([name]) => !["tpr", "nonfinite"].includes(name)) // every detector has these
    .map(([name, value]) => `${name}=${value}`);
  byId("name").textContent = detector.detector;
  byId("params").textContent = params.join(", ");
  byId("guarantee").textContent =
    `Keeps ${percent(detector.tpr)} of inputs like the ${count(detector.n_calibration)} that it ` +
    "was calibrated on. What scores below τ is flagged: do not trust the model’s labels there.";
  const byGroup = detector.by !== null;
  byId("statement").textContent = byGroup ? "" : detector.statement;
  byId("statements").querySelector("p").textContent = detector.statement;
  show(byId("statements"), byGroup);
  show(byId("metrics"), !token()); // a link brings no token
}

function trouble(text) {
  byId("trouble").textContent = text;
  show(byId("trouble"), Boolean(text));
}

function askForToken() {
  watching?.stop();
  watching = null;
  byId("token-why").textContent = token()
    ? "The service does not accept this token."
    : "This service answers only those who bring its token.";
  keepToken("");
  trouble("");
  show(byId("content"), false);
  show(byId("token-form"), true);
  byId("token").value = "";
  byId("token").focus();
}

// What every part of the page does with an error: a token is asked for, the rest it says itself.
export function refused(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401) askForToken();
  return error.message;
}

async function start() {
  const mine = ++starts;
  let detector;
  try {
    detector = await ask("/v1/detector");
  } catch (error) {
    if (mine !== starts) return;
    const text = refused(error);
    if (error.status !== 401) {
      trouble(text);
      setTimeout(start, 5000);
    }
    return;
  }
  if (mine !== starts) return;
  trouble("");
  introduce(detector);
  prepare(detector, refused);
  show(byId("token-form"), false);
  show(byId("content"), true);
  watching?.stop();
  watching = watch(detector, { refused, changed: start });
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  byId("token-why").textContent = "Asking the service …";
  start();
});
start();
