// What each view draws.

const MARK = [70, 200, 255], COVER = [128, 128, 128]; // colors of the query and of hidden patches

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

const inWords = { low: 0, high: -Infinity, query: CLASS_TOKEN, name: percent };

// Draw the image in dark gray with a glow where values (N) are high, from `low` to their highest or
// at least `high`, and a frame around the query. `name` writes the ends at the bar of colors.
function glow(canvas, values, label, options = {}) {
  const { low, high: least, query, name } = { ...inWords, ...options }, most = highest(values);
  const high = Math.max(values[most], least);
  paint(canvas, (n, x, y) => {
    if (n === query && [0, patch - 1].some((edge) => edge === x || edge === y)) return MARK;
    const [r, g, b] = hidden.has(n) ? COVER : pixel(image.pixels, n, x, y);
    const gray = 20 + 0.38 * (0.3 * r + 0.6 * g + 0.1 * b);
    const share = Math.max(0, values[n] - low) / (high - low || 1);
    const cover = 0.85 * Math.sqrt(share), heat = [255, 90 + 150 * share, 20 + 90 * share ** 2];
    return heat.map((each) => cover * each + (1 - cover) * gray);
  });
  canvas.ariaLabel = `${label}: highest at ${place(most)}, ${name(values[most])}`;
  const bar = canvas.nextElementSibling;
  if (bar) Object.assign(bar.dataset, { low: name(low), high: name(high) });
}

const attentionOf = (layer, head, token) => {
  const row = (head * tokens + token) * tokens;
  return result.layers[layer].subarray(row, row + tokens);
};

// Draw one map in each cell of a table: `values` gives those (N) of a layer and a head.
function drawTable(id, values, query = CLASS_TOKEN) {
  for (const [at, canvas] of all(`#${id} canvas`).entries()) {
    const layer = Math.floor(at / heads), head = at % heads; // even attention glows half
    const isOff = id === "overview" && off.has(at); // recorded maps know no changes
    const label = `Layer ${layer + 1}, head ${head + 1}${isOff ? ", switched off" : ""}`;
    glow(canvas, values(layer, head, at), label, { query, high: 2 / count });
    if (chosen.lesson === CNN && query >= 0) frame(canvas, query, layer + 1);
    canvas.classList.toggle("off", isOff);
  }
}

// Outline the patches that a CNN of 3×3 patches could reach from the query after some layers.
function frame(canvas, query, reach) {
  const context = canvas.getContext("2d"), at = [query % grid, Math.floor(query / grid)];
  const starts = at.map((each) => patch * Math.max(each - reach, 0));
  const sides = at.map((each, i) => patch * Math.min(each + reach + 1, grid) - starts[i] - 1);
  context.strokeStyle = `rgb(${MARK})`;
  context.strokeRect(...starts.map((each) => each + 0.5), ...sides);
}

function drawHeads() {
  const { query } = chosen;
  drawTable("overview", (layer, head) =>
    attentionOf(layer, head, query + classToken).subarray(classToken), query);
  for (const id of ["rollout", "relevance"]) {
    const low = id === "rollout" ? Math.min(...result[id]) : 0;
    glow($(id), result[id].map((each) => each - low), id, { name: (value) => value.toFixed(3) });
  }
}

// The probabilities that the head would give if it read a token or, without one, their mean.
function readAt(lens, token = null) {
  const many = classes.length, mean = new Float32Array(many);
  if (token !== null) return probabilities(lens.subarray(token * many, (token + 1) * many));
  lens.forEach((each, i) => (mean[i % many] += each / tokens));
  return probabilities(mean);
}
const answerAt = (lens) => readAt(lens, classToken ? 0 : null);

function drawLayers() {
  const { target, traces, logits } = result, { query } = chosen, token = query + classToken;
  for (const [after, row] of all("#lens tbody tr").entries()) {
    const lens = result.lens[2 * after], [answer, asked] = all(".bar", row);
    const values = cells.map((_, n) => readAt(lens, n + classToken)[target]);
    glow(row.querySelector("canvas"), values, `after layer ${after}`, { query, high: 1 });
    for (const [bar, shares] of [[answer, answerAt(lens)], [asked, readAt(lens, token)]]) {
      drawBar(bar, highest(shares), shares);
      bar.classList.toggle("right", highest(shares) === highest(logits));
    }
  }
  for (const [layer, button] of all("#lens button").entries()) {
    button.textContent = skip.has(layer) ? "off" : "on";
    button.ariaLabel = `Layer ${layer + 1} is ${button.textContent}`;
    button.setAttribute("aria-pressed", skip.has(layer));
  }
  $("lens-scale").dataset.high = `${percent(1)} ${classes[target]}`;
  $("no-attention").setAttribute("aria-pressed", off.size === ENDS.off);
  const length = (matrix) => norm(matrix.subarray(token * width, (token + 1) * width));
  const line = (name) => traces.map((trace, layer) => [layer + 1, length(trace[name])]);
  chart($("norms"), {
    "the stream": [[0, length(traces[0].x)], ...line("out")],
    "attention adds": line("joined"), "MLP adds": line("narrow"),
  }, "layer", (value) => value.toFixed(1));
}

// Draw lines of points [x, y] from 0 to the highest y, with the names of the lines at their ends.
function chart(svg, lines, axis, name) {
  const points = Object.values(lines).flat(), most = Math.max(...points.map(([, y]) => y), 1e-6);
  const last = Math.max(...points.map(([x]) => x), 1);
  const at = ([x, y]) => [34 + (176 * x) / last, 128 - (116 * y) / most];
  const text = (x, y, anchor, words, kind = "") =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}" class="${kind}">${words}</text>`;
  const parts = [text(30, 16, "end", name(most)), text(30, 131, "end", 0), text(124, 156, "middle", axis)];
  let right = Infinity; // skips a number too near to the next one
  for (const [x] of [...Object.values(lines)[0]].reverse())
    if (right - at([x, 0])[0] >= 14) parts.push(text((right = at([x, 0])[0]), 142, "middle", x));
  const ends = Object.entries(lines).sort(([, a], [, b]) => b.at(-1)[1] - a.at(-1)[1]);
  let free = 0; // so that names do not overlap
  for (const [title, each] of ends) {
    const kind = `line${Object.keys(lines).indexOf(title)}`, [x, y] = at(each.at(-1));
    free = Math.max(y + 4, free + 13);
    const dots = each.map(at).map(([cx, cy]) => `<circle cx="${cx}" cy="${cy}" r="2.4" class="${kind}"/>`);
    parts.push(`<path d="M${each.map(at).join("L")}" class="${kind}"/>`, ...dots);
    parts.push(text(x + 8, free, "start", title, kind));
  }
  svg.innerHTML = `<path d="M34 8V128H214" class="axis"/>${parts.join("")}`;
  svg.ariaLabel = Object.entries(lines).map(([title, each]) =>
    `${title}: ${each.map(([x, y]) => `${axis} ${x}, ${name(y)}`).join("; ")}`).join(". ");
}

// The image as the model believes it to be: each patch at the place whose position it has.
function drawPositions() {
  const { order } = changes(), source = [], n = Math.max(chosen.query, 0);
  const value = order === null ? "in place" : chosen.order ? "shuffled" : "none";
  for (const each of all("#orders input")) each.checked = each.value === value;
  if (!similar) return;
  cells.forEach((_, each) => (source[order ? order[each] : each] = each));
  const isGone = (at) => source[at] === undefined || hidden.has(source[at]);
  paint($("believed"), (at, x, y) => (isGone(at) ? COVER : pixel(image.pixels, source[at], x, y)));
  $("believed").ariaLabel = `Positions ${value}`;
  drawSimilar("similar", similar.subarray(n * count, (n + 1) * count), n);
}

function drawSimilar(id, values, query) {
  $(id).parentNode.lastElementChild.textContent = `Cosine similarity to the position of ${nameOf(query)}`;
  glow($(id), values, "Similarity", { query, low: Math.min(...values), name: (value) => fixed(value, 2) });
}

// An epoch from the bytes in the page: of the test images, without the user's changes.
function drawLearning() {
  const shown = epochs[epoch], n = Math.max(chosen.query, 0);
  const each = ENDS.off * count, start = epoch * (images.length * each + (similar ? count ** 2 : 1));
  const recorded = (from) => Float32Array.from(earlier.subarray(start + from, start + from + count));
  $("epoch").value = epoch;
  $("epoch-name").textContent = `Epoch ${shown.epoch} of ${epochs.at(-1).epoch}`;
  chart($("rising"), { "": epochs.map((at) => [at.epoch, at.accuracy]) }, "epoch", percent);
  if (similar)
    drawSimilar("growing", recorded(images.length * each + n * count).map((byte) => byte / 127.5 - 1), n);
  const logits = shown.logits[image.index];
  $("forming").hidden = !logits;
  if (!logits) return ($("then").textContent = "Epochs are stored for the test images only.");
  const right = rightOf(answersOf(shown.logits.map((row) => ({ logits: row }))));
  $("then").textContent = `This image: ${said({ logits })}. Right: ${ofAll(right)} above, and ` +
    `${percent(shown.accuracy)} of ${shown.images.toLocaleString("en")} test images.`;
  drawTable("forming", (layer, head, at) =>
    recorded(image.index * each + at * count).map((byte) => (byte / 255) ** 2));
}

const VIEWS = { layers: drawLayers, steps: drawSteps, heads: drawHeads, positions: drawPositions,
  learning: drawLearning };
