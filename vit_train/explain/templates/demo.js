// The page: what the reader chooses, and how the worker's answers are drawn.
"use strict";

const $ = (id) => document.getElementById(id);
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const model = JSON.parse($("model").textContent);
const { grid, patch, size, depth, classes, classToken, stretches } = model, count = grid ** 2;
const cells = all("#patches button"), cards = all("#heads figure"), layers = all("#layers .maps");
const bars = all("#classes button"), CLASS_TOKEN = -1, FRAME_MS = 900;
const MARK = [70, 200, 255], COVER = [128, 128, 128]; // colors of the query and of hidden patches

// `query` is the patch that is asked, `target` the explained class (null: the predicted one), and
// `order` the place whose position each patch gets (null: its own).
const chosen = { query: classToken ? CLASS_TOKEN : 0, layer: 0, target: null, order: null };
const hidden = new Set(), off = new Set(); // patches, and heads as "layer,head"
let image, result, similar; // `image.plain` is the result without changes, `result` the one shown

const code = new Blob([$("worker").textContent], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(code));
const ask = (question) => new Promise((resolve, reject) => {
  worker.onmessage = ({ data }) => resolve(data);
  worker.onerror = reject;
  worker.postMessage(question);
});
const isChanged = () => hidden.size > 0 || off.size > 0 || chosen.order !== null;
let busy = false, again = false;

// Compute and draw what is chosen. While the worker is busy, only the latest choice is kept.
async function update() {
  again = busy;
  if (busy) return;
  try {
    do {
      [busy, again] = [true, false];
      const shown = image, { pixels } = image, { target, order } = chosen;
      shown.plain ??= await ask({ pixels });
      const heads = [...off].map((head) => head.split(",").map(Number));
      const question = { pixels, target, order, hidden: [...hidden], off: heads };
      const found = isChanged() || target !== null ? await ask(question) : shown.plain;
      if (shown === image) draw((result = found));
    } while (again);
  } finally {
    busy = false;
  }
}

const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}\u00a0%`;
const place = (n) => `row ${Math.floor(n / grid) + 1}, column ${(n % grid) + 1}`;
const nameOf = (n) => (n === CLASS_TOKEN ? "the class token" : `the patch in ${place(n)}`);
const highest = (values) => values.indexOf(values.reduce((a, b) => Math.max(a, b)));

function probabilities(logits) {
  const most = logits[highest(logits)], power = (x) => Math.exp((x - most) / model.temperature);
  const powers = Array.from(logits, power), whole = powers.reduce((a, b) => a + b);
  return powers.map((each) => each / whole);
}

// Draw pixels: `color(n, x, y)` is the color (r, g, b) at the column x and row y of the patch n.
function paint(canvas, color) {
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d"), picture = context.createImageData(size, size);
  for (let at = 0; at < size ** 2; at++) {
    const y = Math.floor(at / size), x = at % size;
    const n = Math.floor(y / patch) * grid + Math.floor(x / patch);
    picture.data.set([...color(n, x % patch, y % patch), 255], 4 * at);
  }
  context.putImageData(picture, 0, 0);
}

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

// Draw the attention from the query to all patches in one head, and return that to all tokens.
function drawAttention(canvas, layer, head) {
  const tokens = count + classToken, row = head * tokens + chosen.query + classToken;
  const shares = result.layers[layer].subarray(row * tokens, (row + 1) * tokens);
  const label = `Layer ${layer + 1}, head ${head + 1}`; // even attention glows half
  glow(canvas, shares.subarray(classToken), label, chosen.query, 2 / count);
  canvas.classList.toggle("off", off.has(`${layer},${head}`));
  return shares;
}

function drawHeads() {
  const { layer, query } = chosen;
  $("layer").value = layer + 1;
  $("layer-name").textContent = `Layer ${layer + 1} of ${depth}`;
  $("asking").textContent = nameOf(query);
  for (const [head, card] of cards.entries()) {
    const [button, canvas, caption] = all("button, canvas, figcaption", card);
    const shares = drawAttention(canvas, layer, head);
    const token = classToken ? ` · class token: ${percent(shares[0])}` : "";
    const most = percent(Math.max(...shares.subarray(classToken)));
    caption.textContent = `brightest patch: ${most}${token}`;
    button.textContent = off.has(`${layer},${head}`) ? "switch on" : "switch off";
    button.setAttribute("aria-pressed", off.has(`${layer},${head}`));
    button.setAttribute("aria-label", `${button.textContent} head ${head + 1} of layer ${layer + 1}`);
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
  const best = highest(now), was = highest(before), { order } = chosen, changed = isChanged();
  const words = (k, shares) => `${classes[k]} ${percent(shares[k])}`;
  const answer = words(best, now), unchanged = words(was, before);
  $("answer").textContent = answer;
  $("truth").textContent = image.label ? `true class: ${image.label}` : "your photo";
  $("before").textContent = changed ? `Lines: before your changes (${unchanged}).` : "";
  $("effect").textContent = order &&
    `With ${order[0] < 0 ? "no" : "shuffled"} positions: ${answer}. Unchanged: ${unchanged}.`;
  document.body.classList.toggle("changed", changed);
  const shown = classes.map((_, k) => k);
  if (bars.length < classes.length) shown.sort((a, b) => now[b] - now[a]);
  for (const [row, bar] of bars.entries()) {
    const k = shown[row], [name, track, share] = bar.children;
    [bar.k, name.textContent, share.textContent] = [k, classes[k], percent(now[k])];
    track.style.cssText = `--now: ${now[k]}; --before: ${before[k]}`;
    name.classList.toggle("best", k === best);
    bar.setAttribute("aria-pressed", k === result.target);
  }
}

// The image as the model believes it to be: each patch at the place whose position it has.
function drawPositions() {
  if (!similar) return;
  const { order } = chosen, source = [], n = Math.max(chosen.query, 0);
  cells.forEach((_, each) => (source[order ? order[each] : each] = each));
  const isGone = (at) => source[at] === undefined || hidden.has(source[at]);
  paint($("believed"), (at, x, y) => (isGone(at) ? COVER : pixel(image.pixels, source[at], x, y)));
  const caption = order?.[0] < 0 ? "No patch has a position"
    : order ? "Where the model believes the patches are" : "Each patch has its own place";
  $("places").textContent = caption;
  $("believed").setAttribute("aria-label", caption);
  const values = similar.subarray(n * count, (n + 1) * count), low = Math.min(...values);
  glow($("similar"), values.map((each) => (each - low) ** 2), "Similar positions", n);
  $("similar-to").textContent = nameOf(n);
}

function draw() {
  document.body.classList.remove("waiting");
  [drawPatches, drawHeads, drawAnswer, drawPositions].forEach((part) => part());
  for (const name of ["rollout", "relevance"]) glow($(name), result[name], name);
  $("explained").textContent = classes[result.target];
  $("footer").textContent = `The forward pass took ${Math.round(result.forwardMs)} ms.`;
}

function choose(query, aloud = false) {
  if (query === chosen.query) return;
  chosen.query = query;
  [drawPatches, drawHeads, drawPositions].forEach((part) => part());
  const label = (canvas) => canvas.getAttribute("aria-label");
  if (aloud) $("spoken").textContent = all("#heads canvas").map(label).join("; ");
}

let kept = chosen.query; // the one that is asked when no patch is pointed at
function keep(query, aloud) {
  kept = query;
  choose(query, aloud);
}
function showLayer(layer) {
  chosen.layer = layer;
  drawHeads();
}
function toggle(set, key) {
  if (!set.delete(key)) set.add(key);
  update();
}
let playing = null;
function play() {
  const next = () => showLayer((chosen.layer + 1) % depth);
  clearInterval(playing); // does nothing if it is null
  playing = playing === null ? setInterval(next, FRAME_MS) : null;
  $("play").textContent = playing === null ? "▶ Play" : "❚❚ Pause";
}

function shuffled() {
  const drawn = cells.map((_, n) => [Math.random(), n]).sort(([a], [b]) => a - b);
  return drawn.map(([, n]) => n);
}

function show(next) {
  image = next;
  $("alert").textContent = "";
  document.body.classList.add("waiting");
  chosen.target = null;
  hidden.clear();
  const canvas = document.createElement("canvas");
  paint(canvas, (...at) => pixel(image.pixels, ...at));
  $("patches").style.setProperty("--picture", `url(${canvas.toDataURL()})`);
  for (const each of $("images").children) each.setAttribute("aria-pressed", each.image === image);
  return update();
}

// Scale the part of each row that begins at `start` as Pillow's bilinear filter does, transposed: a
// new pixel is a mean of those around it, with weights that fall to 0 one new pixel away.
function scaled(pixels, from, start, side, to) {
  const wide = Math.max(side / to, 1), height = pixels.length / (3 * from);
  const made = new Uint8ClampedArray(height * to * 3);
  for (let x = 0; x < to; x++) {
    const center = start + ((x + 0.5) * side) / to, shares = [];
    const first = Math.max(0, Math.trunc(center - wide + 0.5));
    for (let i = first; i < Math.min(from, Math.trunc(center + wide + 0.5)); i++)
      shares.push(Math.max(0, 1 - Math.abs(i - center + 0.5) / wide));
    const whole = shares.reduce((a, b) => a + b);
    for (let at = 0; at < 3 * height; at++) {
      const begin = 3 * (Math.floor(at / 3) * from + first) + (at % 3);
      const sum = shares.reduce((so, share, i) => so + share * pixels[begin + 3 * i], 0);
      made[x * height * 3 + at] = Math.floor(sum / whole + 0.5);
    }
  }
  return made;
}

// A photo or the square in its middle, on white where it is transparent: uint8 (S,S,3).
async function preprocess(file) {
  const photo = await createImageBitmap(file), sides = [photo.width, photo.height];
  const less = Math.min(1, 2048 / Math.min(...sides)); // a larger photo takes seconds
  const [width, height] = sides.map((each) => Math.round(each * less));
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d"), side = Math.min(width, height);
  Object.assign(context, { fillStyle: "#fff", imageSmoothingQuality: "high" });
  context.fillRect(0, 0, width, height);
  context.drawImage(photo, 0, 0, width, height);
  const colors = context.getImageData(0, 0, width, height).data.filter((_, i) => i % 4 < 3);
  const [across, down] = [width, height].map((each) =>
    stretches ? [0, each] : [Math.floor((each - side) / 2), side]);
  return scaled(scaled(colors, width, ...across, size), height, ...down, size);
}

async function open(file) {
  const pixels = await preprocess(file).catch(() => null);
  $("alert").textContent = pixels ? "" : `This browser cannot read ${file.name} as an image.`;
  if (pixels) show({ pixels });
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function step([down, right], n) {
  const row = Math.floor(n / grid) + down, column = (n % grid) + right, next = row * grid + column;
  if (Math.min(row, column) < 0 || Math.max(row, column) >= grid) return;
  cells.forEach((cell, each) => (cell.tabIndex = each === next ? 0 : -1));
  cells[next].focus();
  keep(next, true);
}

// Pointing at a patch selects it, a click or tap keeps it selected, a second one hides it, as Enter does.
function listenToPatches() {
  $("patches").onpointerleave = () => choose(kept);
  for (const [n, cell] of cells.entries()) {
    cell.onpointerover = ({ pointerType }) => pointerType === "mouse" && choose(n);
    cell.onclick = ({ detail }) => (kept !== n && detail ? keep(n) : toggle(hidden, n));
    cell.onkeydown = (event) => {
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      step(STEPS[event.key], n);
    };
  }
}

function listen() {
  const on = (id, act) => $(id)?.addEventListener("click", act);
  on("class-token", () => keep(CLASS_TOKEN));
  on("play", play);
  on("restore", () => {
    hidden.clear();
    update();
  });
  on("all-on", () => {
    off.clear();
    update();
  });
  on("positions", ({ target: { value } }) => {
    const orders = { "in place": null, shuffled: shuffled(), none: cells.map(() => -1) };
    if (value in orders) update((chosen.order = orders[value]));
  });
  for (const [head, card] of cards.entries())
    all("button", card)[0].onclick = () => toggle(off, `${chosen.layer},${head}`);
  for (const [layer, row] of layers.entries()) row.onclick = () => showLayer(layer);
  for (const bar of bars) bar.onclick = () => update((chosen.target = bar.k));
  for (const button of $("images").children) button.onclick = () => show(button.image);
  $("layer").oninput = () => showLayer($("layer").value - 1);
  $("file").onchange = ({ target }) => { // the same photo may be opened again
    if (target.files.length) open(target.files[0]);
    target.value = "";
  };
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
  for (const { image: index, photo, ...changes } of questions) {
    const bytes = Uint8Array.from(atob(photo ?? ""), (sign) => sign.charCodeAt(0));
    const pixels = photo ? await preprocess(new Blob([bytes])) : images[index].pixels;
    answers.push({ ...(await ask({ pixels, ...changes })), pixels });
  }
  const plain = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
  $("checked").textContent = JSON.stringify(answers, plain);
}

async function main() {
  if (!window.DecompressionStream) throw new Error("it cannot decompress");
  const loaded = await ask({ model, weights: $("weights").textContent }), each = 3 * size ** 2;
  const images = all("#images button").map((button, index) => {
    const pixels = loaded.images.slice(index * each, (index + 1) * each);
    const label = classes[model.labels[index]];
    button.image = { pixels, label };
    button.setAttribute("aria-label", `Image ${index + 1}: ${label}`);
    paint(button.firstChild, (...at) => pixel(pixels, ...at));
    return button.image;
  });
  similar = loaded.similarity;
  $(similar ? "without-positions" : "with-positions").hidden = true;
  $("main").hidden = false;
  await show(images[0]);
  [listen, listenToPatches].forEach((start) => start());
  const [, questions] = decodeURIComponent(location.hash).split("#check=");
  if (questions) await check(images, JSON.parse(questions));
}

// Headless browsers dump a page once it has loaded; the open frame delays that until main() is done.
$("frame").contentDocument?.open();
main().catch(({ message }) => {
  $("alert").textContent = `This browser cannot run the model (${message}): use a newer one.`;
}).finally(() => $("frame").contentDocument?.close());
