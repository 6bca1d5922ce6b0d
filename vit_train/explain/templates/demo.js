// The page: what the reader chooses, and how the worker's answers are drawn.
"use strict";

const $ = (id) => document.getElementById(id);
const text = (id) => $(id).textContent;
const model = JSON.parse(text("model"));
const { grid, patch, size, depth, classes, classToken } = model, count = grid ** 2;
const CLASS_TOKEN = -1, FRAME_MS = 900;
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const cells = all("#patches button"), bars = all("#classes button"), layers = all(".maps");
const cards = all("#heads figure");

// `query` is the patch that is asked, `target` the explained class (null: the predicted one), and
// `order` the place whose position each patch gets (null: its own).
const chosen = { query: classToken ? CLASS_TOKEN : 0, layer: 0, target: null, order: null };
const hidden = new Set(), off = new Set(); // patches, and heads as "layer,head"
let image, result, similar; // `image.plain` is the result without changes, `result` the one shown

const code = new Blob([text("worker")], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(code));

function ask(question) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = reject;
    worker.postMessage(question);
  });
}

const isChanged = () => hidden.size > 0 || off.size > 0 || chosen.order !== null;
let busy = false, again = false;

// Compute and draw what is chosen. While the worker is busy, only the latest choice is kept.
async function update() {
  again = busy;
  if (busy) return;
  busy = true;
  do {
    again = false;
    const shown = image, { pixels } = image, { target, order } = chosen;
    shown.plain ??= await ask({ pixels });
    const heads = [...off].map((head) => head.split(",").map(Number));
    const question = { pixels, target, order, hidden: [...hidden], off: heads };
    const found = isChanged() || target !== null ? await ask(question) : shown.plain;
    if (shown === image) draw((result = found));
  } while (again);
  busy = false;
}

const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const place = (n) => `row ${Math.floor(n / grid) + 1}, column ${(n % grid) + 1}`;
const nameOf = (n) => (n === CLASS_TOKEN ? "the class token" : `the patch in ${place(n)}`);
const highest = (values) => values.indexOf(values.reduce((a, b) => Math.max(a, b)));

function probabilities(logits) {
  const most = logits[highest(logits)], sum = (a, b) => a + b;
  const powers = Array.from(logits, (each) => Math.exp((each - most) / model.temperature));
  return powers.map((each) => each / powers.reduce(sum));
}

// Draw pixels: `color(n, x, y)` is the color (r, g, b) at the column x and row y of the patch n.
function paint(canvas, color) {
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d"), picture = context.createImageData(size, size);
  for (let y = 0, at = 0; y < size; y++)
    for (let x = 0; x < size; x++, at += 4) {
      const n = Math.floor(y / patch) * grid + Math.floor(x / patch);
      picture.data.set([...color(n, x % patch, y % patch), 255], at);
    }
  context.putImageData(picture, 0, 0);
}

const MARK = [70, 200, 255], COVER = [128, 128, 128];

function pixel(pixels, n, x, y) {
  const row = Math.floor(n / grid) * patch + y, at = 3 * (row * size + (n % grid) * patch + x);
  return [pixels[at], pixels[at + 1], pixels[at + 2]];
}

// Draw the image in dark gray with a glow where values (N) are high, full at `most` or above, and
// a frame around the query.
function glow(canvas, values, label, query = CLASS_TOKEN, most = 1e-12) {
  most = Math.max(...values, most);
  paint(canvas, (n, x, y) => {
    if (n === query && [0, patch - 1].some((edge) => edge === x || edge === y)) return MARK;
    const [r, g, b] = hidden.has(n) ? COVER : pixel(image.pixels, n, x, y);
    const gray = 20 + 0.38 * (0.3 * r + 0.6 * g + 0.1 * b), share = Math.max(0, values[n]) / most;
    const cover = 0.85 * Math.sqrt(share), heat = [255, 90 + 150 * share, 20 + 90 * share ** 2];
    return heat.map((each) => cover * each + (1 - cover) * gray);
  });
  canvas.setAttribute("aria-label", `${label}: highest at ${place(highest(values))}`);
}

// The attention from the query to all tokens in one head.
function attention(layer, head) {
  const tokens = count + classToken, start = head * tokens + chosen.query + classToken;
  return result.layers[layer].subarray(start * tokens, (start + 1) * tokens);
}

// Even attention to all patches glows half.
function drawAttention(canvas, layer, head) {
  const label = `Layer ${layer + 1}, head ${head + 1}`, isOff = off.has(`${layer},${head}`);
  glow(canvas, attention(layer, head).subarray(classToken), label, chosen.query, 2 / count);
  canvas.classList.toggle("off", isOff);
  return isOff;
}

function drawHeads() {
  const { layer } = chosen, name = `Layer ${layer + 1}`;
  $("layer").value = layer + 1;
  $("layer-name").textContent = `${name} of ${depth}`;
  $("asking").textContent = nameOf(chosen.query);
  for (const [head, card] of cards.entries()) {
    const [button, canvas, caption] = all("button, canvas, figcaption", card);
    const shares = attention(layer, head), most = Math.max(...shares.subarray(classToken));
    const token = classToken ? ` · class token ${percent(shares[0])}` : "";
    caption.textContent = `up to ${percent(most)} a patch${token}`;
    button.setAttribute("aria-pressed", drawAttention(canvas, layer, head));
    button.setAttribute("aria-label", `Switch off head ${head + 1} of layer ${layer + 1}`);
  }
  for (const [each, row] of layers.entries()) {
    row.classList.toggle("now", each === layer);
    all("canvas", row).forEach((canvas, head) => drawAttention(canvas, each, head));
  }
}

function drawPatches() {
  for (const [n, cell] of cells.entries()) {
    cell.classList.toggle("hidden", hidden.has(n));
    cell.setAttribute("aria-selected", n === chosen.query);
    cell.setAttribute("aria-label", place(n) + (hidden.has(n) ? ", hidden" : ""));
  }
  $("class-token")?.setAttribute("aria-pressed", chosen.query === CLASS_TOKEN);
  [$("restore").disabled, $("all-on").disabled] = [!hidden.size, !off.size];
}

// The bars show all classes in their order or, of many, the most probable ones.
function drawAnswer() {
  const before = probabilities(image.plain.logits), now = probabilities(result.logits);
  const best = highest(now), { order } = chosen, shown = classes.map((_, k) => k);
  const answer = `${classes[best]} ${percent(now[best])}`, was = highest(before);
  const unchanged = `${classes[was]} ${percent(before[was])}`;
  $("answer").textContent = answer;
  $("truth").textContent = image.label === undefined ? "your photo" : `true class: ${image.label}`;
  $("before").textContent = isChanged() ? `Lines: before your changes (${unchanged}).` : "";
  $("effect").textContent = order &&
    `With ${order[0] < 0 ? "no" : "shuffled"} positions: ${answer}. Unchanged: ${unchanged}.`;
  document.body.classList.toggle("changed", isChanged());
  if (bars.length < classes.length) shown.sort((a, b) => now[b] - now[a]);
  for (const [row, button] of bars.entries()) {
    const k = (button.k = shown[row]), [name, track, share] = button.children;
    [name.textContent, share.textContent] = [classes[k], percent(now[k])];
    track.style.cssText = `--now: ${now[k]}; --before: ${before[k]}`;
    name.classList.toggle("best", k === best);
    button.setAttribute("aria-pressed", k === result.target);
  }
}

// The image as the model must take it to be: each patch at the place whose position it has.
function drawPositions() {
  if (!similar) return;
  const { order } = chosen, source = [], n = Math.max(chosen.query, 0);
  for (let each = 0; each < count; each++) source[order ? order[each] : each] = each;
  const isGone = (at) => source[at] === undefined || hidden.has(source[at]);
  paint($("believed"), (at, x, y) => (isGone(at) ? COVER : pixel(image.pixels, source[at], x, y)));
  $("places").textContent = order?.[0] < 0 ? "No patch has a place"
    : order ? "Where the model takes the patches to be" : "Each patch has its own place";
  $("believed").setAttribute("aria-label", text("places"));
  const values = similar.subarray(n * count, (n + 1) * count), low = Math.min(...values);
  glow($("similar"), values.map((each) => (each - low) ** 2), "Similar positions", n);
  $("similar-to").textContent = nameOf(n);
}

function draw() {
  [drawPatches, drawHeads, drawAnswer, drawPositions].forEach((part) => part());
  for (const name of ["rollout", "relevance"]) glow($(name), result[name], name);
  $("explained").textContent = classes[result.target];
  $("footer").textContent = `The forward pass took ${Math.round(result.forwardMs)} ms.`;
}

function choose(query, aloud = false) {
  if (query === chosen.query) return;
  chosen.query = query;
  [drawPatches, drawHeads, drawPositions].forEach((each) => each());
  const labels = all("#heads canvas").map((each) => each.getAttribute("aria-label"));
  if (aloud) $("spoken").textContent = labels.join("; ");
}

function toggle(set, key) {
  if (!set.delete(key)) set.add(key);
  return update();
}

function showLayer(layer) {
  chosen.layer = layer;
  drawHeads();
}

let playing = null;

function play() {
  const next = () => showLayer((chosen.layer + 1) % depth);
  playing = playing === null ? setInterval(next, FRAME_MS) : clearInterval(playing) ?? null;
  $("play").textContent = playing === null ? "▶ Play" : "❚❚ Pause";
}

function shuffled() {
  const order = Array.from({ length: count }, (_, n) => n);
  for (let n = count - 1; n > 0; n--) {
    const other = Math.floor(Math.random() * (n + 1));
    [order[n], order[other]] = [order[other], order[n]];
  }
  return order;
}

function show(next) {
  image = next;
  chosen.target = null;
  hidden.clear();
  const canvas = document.createElement("canvas");
  paint(canvas, (...at) => pixel(image.pixels, ...at));
  $("patches").style.setProperty("--picture", `url(${canvas.toDataURL()})`);
  for (const each of $("images").children) each.setAttribute("aria-pressed", each.image === image);
  return update();
}

// Scale rows of pixels as Pillow's bilinear filter does: a new pixel is a mean of the old ones
// around it, with weights that fall to 0 at the distance of one new pixel. The result is transposed.
function scaled(pixels, from, to) {
  const wide = Math.max(from / to, 1), height = pixels.length / (3 * from);
  const made = new Uint8ClampedArray(height * to * 3);
  for (let x = 0; x < to; x++) {
    const center = ((x + 0.5) * from) / to, first = Math.max(0, Math.trunc(center - wide + 0.5));
    const last = Math.min(from, Math.trunc(center + wide + 0.5)), shares = [];
    for (let i = first; i < last; i++)
      shares.push(Math.max(0, 1 - Math.abs(i - center + 0.5) / wide));
    const whole = shares.reduce((a, b) => a + b);
    for (let at = 0; at < 3 * height; at++) {
      const start = Math.floor(at / 3) * from * 3 + (at % 3);
      const sum = shares.reduce((so, each, i) => so + each * pixels[start + 3 * (first + i)], 0);
      made[x * height * 3 + at] = sum / whole;
    }
  }
  return made;
}

// The square in the middle of a photo, on white where it is transparent: uint8 (S,S,3).
async function preprocess(file) {
  const photo = await createImageBitmap(file), side = Math.min(photo.width, photo.height);
  const [left, top] = [photo.width, photo.height].map((each) => Math.floor((each - side) / 2));
  const canvas = document.createElement("canvas"), drawn = Math.min(side, 2048);
  canvas.width = canvas.height = drawn;
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, drawn, drawn);
  context.drawImage(photo, left, top, side, side, 0, 0, drawn, drawn);
  const { data } = context.getImageData(0, 0, drawn, drawn);
  const colors = data.filter((_, i) => i % 4 < 3);
  return scaled(scaled(colors, drawn, size), drawn, size);
}

async function open(file) {
  const pixels = await preprocess(file).catch(() => null);
  $("alert").textContent = pixels ? "" : `${file.name} is no image that this browser can read.`;
  if (pixels) show({ pixels });
}

function element(tag, parent, attributes = {}, ...words) {
  const made = parent.appendChild(document.createElement(tag));
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...words);
  return made;
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

// Pointing asks a patch, a click hides it. The first tap on a touch screen only asks.
function listenToPatches() {
  let asksOnly = false;
  const on = (kind, act) => $("patches").addEventListener(kind, (event) => {
    const n = cells.indexOf(event.target);
    if (n >= 0) act(event, n);
  });
  on("pointerover", (event, n) => event.pointerType === "mouse" && choose(n));
  on("pointerdown", ({ pointerType }, n) => {
    asksOnly = pointerType !== "mouse" && chosen.query !== n;
  });
  on("click", ({ detail }, n) => {
    if (asksOnly && detail) choose(n);
    else toggle(hidden, n);
    asksOnly = false;
  });
  on("keydown", (event, n) => {
    if (!STEPS[event.key]) return;
    event.preventDefault();
    const [down, right] = STEPS[event.key], row = Math.floor(n / grid) + down;
    const column = (n % grid) + right, next = row * grid + column;
    if (Math.min(row, column) < 0 || Math.max(row, column) >= grid) return;
    [cells[n].tabIndex, cells[next].tabIndex] = [-1, 0];
    cells[next].focus();
    choose(next, true);
  });
}

function buildImages(pixels) {
  const each = 3 * size * size;
  return model.labels.map((number, index) => {
    const label = classes[number];
    const button = element("button", $("images"), { "aria-label": `Image ${index + 1}: ${label}` });
    button.image = { pixels: pixels.slice(index * each, (index + 1) * each), label };
    paint(element("canvas", button), (...at) => pixel(button.image.pixels, ...at));
    button.onclick = () => show(button.image);
    return button.image;
  });
}

function listen() {
  listenToPatches();
  const on = (id, act) => $(id)?.addEventListener("click", act);
  on("class-token", () => choose(CLASS_TOKEN));
  on("play", play);
  on("restore", () => update(hidden.clear()));
  on("all-on", () => update(off.clear()));
  on("positions", ({ target: { value } }) => {
    const orders = { "in place": null, shuffled: shuffled(), none: new Array(count).fill(-1) };
    if (value in orders) update((chosen.order = orders[value]));
  });
  cards.forEach((card, head) => {
    all("button", card)[0].onclick = () => toggle(off, `${chosen.layer},${head}`);
  });
  layers.forEach((row, layer) => (row.onclick = () => showLayer(layer)));
  bars.forEach((bar) => (bar.onclick = () => update((chosen.target = bar.k))));
  $("layer").oninput = () => showLayer($("layer").value - 1);
  $("file").onchange = () => $("file").files.length && open($("file").files[0]);
  for (const kind of ["dragover", "dragleave", "drop"])
    window.addEventListener(kind, (event) => {
      event.preventDefault();
      document.body.classList.toggle("dropping", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
    });
}

// For tests: #check=[{"image": 0, "hidden": [3]}, …] writes the worker's answers into the page.
async function check(images, questions) {
  const answers = [];
  for (const { image: index, photo, ...changes } of JSON.parse(questions)) {
    const bytes = Uint8Array.from(atob(photo ?? ""), (sign) => sign.charCodeAt(0));
    const pixels = photo ? await preprocess(new Blob([bytes])) : images[index].pixels;
    answers.push({ ...(await ask({ pixels, ...changes })), pixels });
  }
  const plain = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
  element("pre", document.body, { id: "checked", hidden: "" }, JSON.stringify(answers, plain));
}

async function main() {
  if (!window.DecompressionStream) throw new Error("it is too old, use one of 2023 or later");
  const loaded = await ask({ description: model, weights: text("weights") });
  similar = loaded.similarity;
  $("main").hidden = false;
  $(similar ? "without-positions" : "with-positions").hidden = true;
  const images = buildImages(loaded.images);
  listen();
  await show(images[0]);
  const [key, questions] = decodeURIComponent(location.hash).split("=");
  if (key === "#check") await check(images, questions);
}

// Headless browsers write a page down when it has loaded: an open frame keeps it from that.
const frame = element("iframe", document.body, { hidden: "" });
frame.contentDocument.open();
main().catch(({ message }) => {
  $("alert").textContent = `This page does not work in this browser: ${message}.`;
}).finally(() => frame.contentDocument.close());
