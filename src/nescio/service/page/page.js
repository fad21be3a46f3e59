// The page at /: describes the detector and decides which parts of the page are visible.

import { ServiceError, ask, keepToken, token } from "./api.js";
import { byId, count, percent, show } from "./elements.js";
import { watch } from "./traffic.js";
import { prepare } from "./try.js";

let watching = null;
let starts = 0; // only the latest call of start() may change the page

function introduce(detector) {
  document.title = detector.name;
  byId("name").textContent = detector.name;
  byId("guarantee").textContent =
    `Keeps ${percent(detector.tpr)} of inputs like the ${count(detector.n_calibration)} in its ` +
    "calibration data, and flags those that are more unusual: do not trust the labels that the " +
    "model predicts for them.";
  byId("statement").textContent = detector.statement;
  byId("warnings").textContent = detector.warnings.join(" ");
  show(byId("metrics"), !token()); // a link sends no token
}

function trouble(text) {
  byId("trouble").textContent = text;
  show(byId("trouble"), Boolean(text));
}

function askForToken() {
  watching?.stop();
  watching = null;
  byId("token-why").textContent = token()
    ? "Invalid token: the service does not accept it."
    : "This service only answers requests that send its token.";
  keepToken("");
  trouble("");
  show(byId("content"), false);
  show(byId("token-form"), true);
  byId("token").value = "";
  byId("token").focus();
}

// Every part of the page calls this with its errors. It asks for a token if one is missing, and
// returns the message to show.
function failed(error) {
  if (!(error instanceof ServiceError)) throw error;
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
    const text = failed(error);
    if (error.status !== 401) {
      trouble(text);
      setTimeout(start, 5000);
    }
    return;
  }
  if (mine !== starts) return;
  trouble("");
  introduce(detector);
  prepare(detector, failed);
  show(byId("token-form"), false);
  show(byId("content"), true);
  watching?.stop();
  watching = watch({ failed, changed: start });
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  byId("token-why").textContent = "Asking the service …";
  start();
});
start();
