// The page: what the reader chooses. The worker computes it; the scripts after this one show it.
"use strict";

const $ = (id) => document.getElementById(id);
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const model = JSON.parse($("model").textContent);
const { grid, patch, size, width, depth, heads, classes, classToken, stretches, epochs } = model;
const count = grid ** 2, tokens = count + classToken, CLASS_TOKEN = -1, FRAME_MS = 900;
const TRIED = 6; // the most relevant patches, among which the telling one is sought
const cells = all("#patches button"), tabs = all("[role=tab]"), thumbs = all("#images button");

// `query` is the patch that is asked, `target` the explained class (null: the predicted one), and
// `order` is null (positions in place), 0 (none) or the number of a shuffled order.
const chosen = { tab: "layers", query: 0, layer: 0, head: 0, target: null, order: null, lesson: null };
const hidden = new Set(), off = new Set(), skip = new Set(); // patches, heads of all layers, layers
const SETS = { hidden, off, skip }, ENDS = { hidden: count, off: depth * heads, skip: depth };
// `image.plain` is the result without changes, `result` the one shown; `kept` is the patch that is
// asked when none is pointed at (null: the telling one); `filter` are the weights of an embedding's
// first number, and `earlier` the bytes of earlier epochs.
let images, image, result, similar, filter, earlier, kept = null, epoch = epochs.length - 1;

const code = new Blob([$("worker").textContent], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(code));
let queue = Promise.resolve();
const ask = (question) => (queue = queue.catch(() => {}).then(() => new Promise((done, fail) => {
  worker.onmessage = ({ data }) => done(data);
  worker.onerror = fail;
  worker.postMessage(question);
})));
const quick = ({ pixels }, changed) => ask({ pixels, isQuick: true, ...changed });
const isChanged = () => hidden.size + off.size + skip.size > 0 || chosen.order !== null;
const ranked = (values) => upTo(count).sort((a, b) => values[b] - values[a]);

// The order of the patches with this number: always the same (Lehmer's random numbers).
function shuffled(number) {
  const next = () => (number = (number * 48271) % 2147483647);
  return ranked(cells.map(next));
}

// The changes, as the worker takes them.
function changes() {
  const order = chosen.order === 0 ? cells.map(() => -1) : chosen.order && shuffled(chosen.order);
  return { hidden: [...hidden], off: headsOf([...off]), skip: [...skip], order };
}

let busy = false, again = false;

// Compute and draw what is chosen. While the worker is busy, only the latest choice is kept.
async function update() {
  again = busy;
  if (busy) return;
  try {
    do {
      [busy, again] = [true, false];
      const shown = image, { pixels } = image, { target } = chosen;
      shown.plain ??= await ask({ pixels });
      const isPlain = !isChanged() && target === null;
      const found = isPlain ? shown.plain : await ask({ pixels, target, ...changes() });
      if (shown !== image || !shown.plain) continue; // or the same one was chosen again
      draw((result = found));
      if (!shown.telling) await findTelling(shown);
    } while (again);
  } finally {
    busy = false;
  }
}

// Of the most relevant patches, find the one without which the answer loses most.
async function findTelling(shown) {
  const { relevance, target, logits } = shown.plain, before = probabilities(logits)[target];
  const telling = { before, after: Infinity };
  for (const n of ranked(relevance).slice(0, TRIED)) {
    const after = probabilities((await quick(shown, { hidden: [n] })).logits)[target];
    if (after < telling.after) Object.assign(telling, { n, after });
  }
  shown.telling = telling;
  if (shown !== image || !shown.plain) return;
  drawAnswer();
  if (kept === null) keep(telling.n);
}

const percent = (share) => `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)}\u00a0%`;
const place = (n) => `row ${Math.floor(n / grid) + 1}, column ${(n % grid) + 1}`;
const nameOf = (n) => (n === CLASS_TOKEN ? "the class token" : `the patch in ${place(n)}`);
const average = (values) => values.reduce((a, b) => a + b) / values.length;
const highest = (values) => values.indexOf(values.reduce((a, b) => Math.max(a, b)));

function probabilities(logits) {
  const most = logits[highest(logits)], power = (x) => Math.exp((x - most) / model.temperature);
  const powers = Array.from(logits, power), whole = powers.reduce((a, b) => a + b);
  return powers.map((each) => each / whole);
}

function drawPatches() {
  for (const [n, cell] of cells.entries()) {
    cell.classList.toggle("hidden", hidden.has(n));
    cell.tabIndex = n === Math.max(chosen.query, 0) ? 0 : -1;
    cell.setAttribute("aria-selected", n === chosen.query);
    cell.ariaLabel = place(n) + (hidden.has(n) ? ", hidden" : "");
  }
  $("class-token")?.setAttribute("aria-pressed", chosen.query === CLASS_TOKEN);
  $("restore").disabled = !isChanged() && chosen.target === null;
}

// The bars show all classes in their order or, of many, the most probable ones.
function drawAnswer() {
  const before = probabilities(image.plain.logits), now = probabilities(result.logits);
  const best = highest(now), was = highest(before), { telling } = image;
  $("answer").textContent = said(result);
  $("truth").textContent = image.label ? `true: ${image.label}` : "your photo";
  $("before").textContent = isChanged() ? `Lines: before your changes, ${said(image.plain)}.` : "";
  $("telling").textContent = telling ? `A telling patch: without the one in ${place(telling.n)}, ` +
    `${classes[was]} goes from ${percent(telling.before)} to ${percent(telling.after)}.` : "Computing …";
  document.body.classList.toggle("changed", isChanged());
  const rows = all("#classes button"), shown = classes.map((_, k) => k);
  if (rows.length < classes.length) shown.sort((a, b) => now[b] - now[a]);
  for (const [at, row] of rows.entries()) {
    row.k = shown[at];
    drawBar(row, row.k, now, before[row.k]);
    row.classList.toggle("right", row.k === best);
    row.setAttribute("aria-pressed", row.k === result.target);
  }
}

function drawBar(row, k, now, before = 0) {
  const [name, track, share] = row.children;
  [name.textContent, share.textContent] = [classes[k], percent(now[k])];
  track.style.cssText = `--now: ${now[k]}; --before: ${before}`;
}

function draw() {
  for (const each of all(".explained")) each.textContent = classes[result.target];
  for (const part of [drawPatches, drawAnswer, drawTab, store]) part();
  $("footer").textContent = `The forward pass took ${Math.round(result.forwardMs)} ms.`;
}

function drawTab() {
  if (playing !== null && chosen.tab !== "learning") play();
  for (const tab of tabs) {
    const isShown = tab.id === `tab-${chosen.tab}`;
    tab.setAttribute("aria-selected", isShown);
    tab.tabIndex = isShown ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !isShown;
  }
  for (const each of all(".asking")) each.textContent = nameOf(chosen.query);
  if (result) VIEWS[chosen.tab]();
}

function choose(query, aloud = false) {
  if (query === chosen.query || !result) return (chosen.query = query);
  chosen.query = query;
  for (const part of [drawPatches, drawTab]) part();
  const labels = all("canvas[aria-label]", $(chosen.tab)).map((each) => each.ariaLabel);
  if (aloud) $("spoken").textContent = `${nameOf(query)}: ${labels.slice(0, heads).join("; ")}`;
}

function keep(query, aloud) {
  kept = query;
  choose(query, aloud);
  if (result) store();
}
function set(values) {
  Object.assign(chosen, values);
  for (const part of [drawTab, store]) part();
}
function toggle(group, key) {
  if (!group.delete(key)) group.add(key);
  update();
}
function restore() {
  for (const name in SETS) SETS[name].clear();
  Object.assign(chosen, { order: null, target: null });
}
const upTo = (number) => Array.from({ length: number }, (_, i) => i);
const headsOf = (numbers) => numbers.map((i) => [Math.floor(i / heads), i % heads]);
const switchAllOff = () => upTo(ENDS.off).forEach((i) => off.add(i));

let playing = null;
function play() {
  clearInterval(playing); // does nothing if it is null
  playing = playing === null ? setInterval(() => showEpoch((epoch + 1) % epochs.length), FRAME_MS) : null;
  $("play").textContent = playing === null ? "▶ Play" : "❚❚ Pause";
  $("then").ariaLive = playing === null ? "polite" : "off";
}
function showEpoch(at) {
  epoch = at;
  drawTab();
}

// Show an image without the changes to the one before, or with those that a link has set.
function show(next, isNew = true) {
  if (image) image.plain = null; // all its steps take megabytes
  image = next;
  $("alert").textContent = "";
  if (isNew) {
    [chosen.target, kept] = [null, image.telling?.n ?? null];
    choose(kept ?? 0);
    hidden.clear();
  }
  const canvas = document.createElement("canvas");
  paint(canvas, (...at) => pixel(image.pixels, ...at));
  $("patches").style.setProperty("--picture", `url(${canvas.toDataURL()})`);
  for (const each of thumbs) each.setAttribute("aria-pressed", each.image === image);
  $("copy").disabled = !images.includes(image); // a link cannot hold a photo
  answer();
  return update();
}

// Keep the state in the URL's fragment, so that a link shares it.
function store() {
  const state = { ...chosen, image: images.indexOf(image), query: kept };
  for (const name in SETS) state[name] = [...SETS[name]].join(".") || null;
  const stored = Object.entries(state).filter(([, value]) => value !== null);
  try { window.history.replaceState(null, "", `#${new URLSearchParams(stored)}`); } catch {} // too often
}

// Restore the state from the fragment, without values that this model does not have.
function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  const number = (name, end, otherwise = null, first = 0) => {
    const value = parseInt(state.get(name));
    return value >= first && value < end ? value : otherwise;
  };
  if ($(`tab-${state.get("tab")}`)) chosen.tab = state.get("tab");
  chosen.layer = number("layer", depth, 0);
  chosen.head = number("head", heads, 0);
  chosen.target = number("target", classes.length);
  chosen.order = similar ? number("order", 1e6) : null;
  kept = number("query", count, null, -classToken);
  if (kept !== null) chosen.query = kept;
  for (const name in SETS) {
    SETS[name].clear();
    for (const each of state.get(name)?.split(".") ?? [])
      if (each < ENDS[name]) SETS[name].add(Number(each));
  }
  openLesson(number("lesson", LESSONS.length), false);
  return show(images[number("image", images.length, 0)], false);
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
  const photo = await createImageBitmap(file, { colorSpaceConversion: "none" }); // as in Python
  const less = Math.min(1, 2048 / Math.min(photo.width, photo.height)); // more takes seconds
  const [width, height] = [photo.width, photo.height].map((each) => Math.round(each * less));
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d"), side = Math.min(width, height);
  Object.assign(context, { fillStyle: "#fff", imageSmoothingQuality: "high" });
  context.fillRect(0, 0, width, height);
  context.drawImage(photo, 0, 0, width, height);
  photo.close();
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
  cells[next].focus();
  keep(next, true);
}

// Pointing at a patch selects it, a click or tap keeps it selected, a second one hides it, as Enter
// does. Dragging over several hides them, or shows them if the first one was hidden.
function listenToPatches() {
  let first = -1, hides, isDrag;
  $("patches").onpointerleave = () => choose(kept ?? chosen.query);
  $("patches").onpointerdown = ({ target }) => {
    [first, isDrag] = [cells.indexOf(target), false];
    hides = !hidden.has(first);
  };
  $("patches").onpointermove = ({ clientX, clientY, buttons }) => {
    const n = cells.indexOf(document.elementFromPoint(clientX, clientY));
    if (!buttons || Math.min(n, first) < 0 || (n === first && !isDrag)) return;
    isDrag = true;
    for (const each of [first, n]) if (hidden.has(each) !== hides) toggle(hidden, each);
  };
  for (const [n, cell] of cells.entries()) {
    cell.onpointerover = ({ pointerType }) => pointerType === "mouse" && choose(n);
    cell.onclick = ({ detail }) => {
      if (detail && kept !== n && !isDrag) keep(n);
      else if (!detail || !isDrag) toggle(hidden, n);
    };
    cell.onkeydown = (event) => {
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      step(STEPS[event.key], n);
    };
  }
}

function listen() {
  const on = (selector, act) => all(selector).forEach((each, at) => (each.onclick = () => act(at, each)));
  on("#class-token", () => keep(CLASS_TOKEN));
  on("#restore", () => update(restore()));
  on("#no-attention", () => {
    const isOff = off.size === ENDS.off;
    off.clear();
    update(isOff || switchAllOff());
  });
  on("#orders input", (_, { value }) => {
    const orders = { "in place": null, shuffled: chosen.order || 1, none: 0 };
    update((chosen.order = orders[value]));
  });
  on("#again", () => update((chosen.order += 1)));
  on("#play", play);
  on("#next", () => set({ layer: (chosen.layer + 1) % depth }));
  on("#which-layer button", (layer) => set({ layer }));
  on("#which-head button", (head) => set({ head }));
  on("#overview button", (at) => toggle(off, at));
  on("#lens button", (layer) => toggle(skip, layer));
  on("#classes button", (_, { k }) => update((chosen.target = chosen.target === k ? null : k)));
  on("#images button", (_, thumb) => show(thumb.image));
  on("[role=tab]", (_, tab) => set({ tab: tab.getAttribute("aria-controls") }));
  for (const [at, tab] of tabs.entries())
    tab.onkeydown = ({ key }) => {
      const next = tabs[(at + (STEPS[key]?.[1] ?? 0) + tabs.length) % tabs.length];
      next.focus();
      if (next !== tab) next.click();
    };
  if ($("epoch")) $("epoch").oninput = () => showEpoch(Number($("epoch").value));
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

// For tests: #check=[{"image": 0, "hidden": [3]}, …] writes answers into the page, the worker's or
// only those in `names`. "steps" are the numbers for [token, layer, head], "lesson" is its answer.
async function check(questions) {
  const answers = [];
  for (const { image: index, photo, names, steps: opened, lesson, ...changed } of questions) {
    const bytes = Uint8Array.from(atob(photo ?? ""), (sign) => sign.charCodeAt(0));
    const pixels = photo ? await preprocess(new Blob([bytes])) : images[index].pixels;
    const found = { ...(await ask({ pixels, ...changed })), pixels };
    if (opened) found.steps = steps(...opened, found);
    if (lesson >= 0) found.lesson = await LESSONS[lesson].answer(images[index]);
    answers.push(names ? Object.fromEntries(names.map((name) => [name, found[name]])) : found);
  }
  const plain = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
  $("checked").textContent = JSON.stringify(answers, plain);
}

async function main() {
  if (!window.DecompressionStream) throw new Error("it cannot decompress");
  const loaded = await ask({ model, weights: $("weights").textContent }), each = 3 * size ** 2;
  images = thumbs.map((button, index) => {
    const pixels = loaded.rest.slice(index * each, (index + 1) * each);
    const label = classes[model.labels[index]];
    button.image = { pixels, label, index };
    button.ariaLabel = `Image ${index + 1}: ${label}`;
    paint(button.firstChild, (...at) => pixel(pixels, ...at));
    return button.image;
  });
  earlier = loaded.rest.subarray(images.length * each);
  ({ similarity: similar, filter } = loaded);
  $(similar ? "without-positions" : "with-positions").hidden = true;
  $("main").hidden = false;
  const [, questions] = decodeURIComponent(location.hash).split("#check=");
  for (const part of [makeSteps, makeLessons, listen, listenToPatches]) part();
  await recall();
  window.onhashchange = recall;
  if (questions) await check(JSON.parse(questions));
}
