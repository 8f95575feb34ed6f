// The planner's page: reads the form, asks the worker, shows the answer.
const form = document.getElementById("planner");
const folder = new URL("./planner/", import.meta.url).href;
const byId = (id) => document.getElementById(id);
const say = (text) => { byId("planner-state").textContent = text; };

let worker = null;   // started when the reader turns to the form: it loads 15 MB
let started = false;
let asked = 0;       // the number of the last request; answers to older ones are dropped
let busy = false;
let waiting = null;

/** Powers of two on a slider that moves evenly. */
const VALUE = { mean: (v) => 2 ** v, max: (v) => 2 ** v, ranks: (v) => 2 ** v, budget: (v) => 2 ** v, sigma: Number, count: Number };
const value = (name) => VALUE[name](Number(form.elements[name].value));

function request() {
  const own = form.elements.source.value === "own";
  const made = {
    lengths: own ? "" : `lognormal:mean=${Math.round(value("mean"))},sigma=${value("sigma")},min=128,max=${value("max")},n=${value("count")},seed=0`,
    ranks: value("ranks"),
    max_tokens_per_rank: value("budget"),
    cost: form.elements.cost.value,
    objective: form.elements.objective.value,
    cp_sizes: "pow2",
  };
  if (own) made.text = form.elements.text.value;
  return made;
}

function labels() {
  for (const output of form.querySelectorAll("output[for]")) {
    const shown = value(output.htmlFor.value);
    output.textContent = shown.toLocaleString("en-US", { maximumFractionDigits: 1 });
  }
  const own = form.elements.source.value === "own";
  byId("planner-own").hidden = !own;
  byId("planner-drawn").hidden = own;
}

function time(amount, unit) {
  if (unit !== "seconds") return `${amount.toPrecision(4)} ${unit}`;
  return amount >= 1 ? `${amount.toPrecision(4)} s` : `${(amount * 1e3).toPrecision(4)} ms`;
}

function show(answer) {
  byId("planner-error").textContent = answer.error || "";
  byId("planner-result").classList.toggle("stale", Boolean(answer.error));
  if (answer.error) return;
  const { numbers } = answer;
  const gain = (name) => (name in numbers.gains ? `${numbers.gains[name].toFixed(2)} times` : "–");
  const facts = {
    gain: gain("static"),
    best: gain("best"),
    iteration: time(numbers.iteration, numbers.unit),
  };
  for (const [name, text] of Object.entries(facts)) byId(`planner-${name}`).textContent = text;
  byId("planner-warnings").replaceChildren(...numbers.warnings.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  byId("planner-command").textContent = answer.command;
  if (answer.page) byId("planner-page").srcdoc = answer.page;
  window.plannerAnswer = answer;   // what the browser test compares with the command
}

function begin() {
  if (worker !== null) return;
  worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  say("Loading Python: 15 MB, a few seconds.");
  worker.addEventListener("message", ({ data }) => {
    if (data.ready) {
      started = true;
      say(busy ? "Planning…" : "Python is ready: change a value to plan in your browser.");
    }
    if (data.failed) say(`Python did not start: ${data.failed}`);
    if (data.answer === undefined) return;
    busy = false;
    if (data.id === asked) {
      show(JSON.parse(data.answer));
      say("Planned in your browser by the planner's own Python.");
    }
    if (waiting) send(waiting);
  });
}

function send(made) {
  if (busy) {
    waiting = made;
    return;
  }
  waiting = null;
  busy = true;
  asked += 1;
  worker.postMessage({ id: asked, request: made });
}

let timer = 0;
function changed() {
  labels();
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (form.elements.source.value === "own" && !form.elements.text.value.trim()) return;
    begin();
    if (started) say("Planning…");
    send(request());
  }, 200);
}

const frame = byId("planner-page");
function fit() {
  const inner = frame.contentDocument?.documentElement;
  if (inner) frame.style.height = `${inner.scrollHeight + 2}px`;
}
frame.addEventListener("load", () => {
  fit();
  for (const part of frame.contentDocument?.querySelectorAll("details") || []) part.addEventListener("toggle", fit);
});
addEventListener("resize", fit);

const response = await fetch(`${folder}first.json`);
const first = await response.json();
show(first);
labels();
if (first.python) {
  form.addEventListener("pointerdown", begin);
  form.addEventListener("focusin", begin);
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
  say("The first plan was made when the site was built. Change a value to plan in your browser.");
} else {
  for (const control of form.elements) control.disabled = true;
  say("This build of the site has no Python for the browser. Run the command below instead.");
}
document.documentElement.dataset.planner = "ready";
