// One token on its way through a layer, step by step, with all numbers.

const fixed = (value, digits = 3) => value.toFixed(digits).replace("-", "−");
const norm = (vector) => Math.sqrt(vector.reduce((sum, each) => sum + each ** 2, 0));
const dot = (a, b) => a.reduce((sum, each, i) => sum + each * b[i], 0);

const factor = (value) => (value < 0 ? `(${fixed(value)})` : fixed(value));
const products = (a, b) => `${[0, 1].map((i) => `${factor(a[i])} × ${factor(b[i])}`).join(" + ")} + …`;

// What an addition and a LayerNorm do to the first of the numbers, in words.
const adding = (a, b, sum) => `Number 1: ${fixed(a[0])} + ${factor(b[0])} = ${fixed(sum[0])}. ` +
  `Lengths: ${fixed(norm(a), 1)} and ${fixed(norm(b), 1)} give ${fixed(norm(sum), 1)}.`;
function normalizing(before, after) {
  const mean = average(before), deviation = Math.sqrt(average(before.map((x) => (x - mean) ** 2)));
  return `The mean, ${fixed(mean)}, is subtracted, and the result divided by the standard ` +
    `deviation, ${fixed(deviation)}; then each number is scaled and shifted as learned. ` +
    `Number 1: ${fixed(before[0])} becomes ${fixed(after[0])}.`;
}

// Return the steps: a title, the shapes, the calculation in words, and parts [name, numbers, kind].
function steps(token, layer, head, found = result) {
  const { traces, lens, patches, layers } = found, dim = width / heads, area = 3 * patch ** 2;
  const row = (matrix, long, t = token) => matrix.subarray(t * long, (t + 1) * long);
  const at = (name, long = width) => row(traces[layer][name], long);
  const [q, k, v] = [0, 1, 2].map((which) => (t) =>
    row(traces[layer].qkv, dim, (3 * t + which) * heads + head));
  const all = Array.from({ length: tokens }, (_, t) => t), query = q(token), n = token - classToken;
  const scores = Float32Array.from(all, (t) => dot(query, k(t)) / Math.sqrt(dim));
  const shares = row(layers[layer], tokens, head * tokens + token), most = highest(scores);
  const embedded = row(found.embedded, width), start = row(traces[0].x, width);
  const position = start.map((each, i) => each - embedded[i]), own = row(at("attended"), dim, head);
  const logits = row(lens[2 * layer + 2], classes.length), other = nameOf(most - classToken);
  const powers = scores.reduce((sum, each) => sum + Math.exp(each), 0), high = fixed(scores[most]);
  const [wide, active] = [at("wide", model.hidden), at("active", model.hidden)];
  const isSkipped = !shares[most], isOff = isSkipped || own.every((each) => !each);
  const unless = (silent, words) => (silent
    ? `This ${isSkipped ? "layer" : "head"} is switched off: it adds nothing.` : words);
  const divided = model.temperature === 1 ? "" : ` of logits / ${fixed(model.temperature, 2)}`;
  const isRead = layer === depth - 1 && (n < 0 || !classToken);
  return [
    n < 0 ? ["Start", "no pixels", "The class token is a learned vector.", []]
      : ["Cut out", `${patch} × ${patch} pixels × 3 colors = ${area} numbers`,
        "Row by row, first all red values, then green, then blue: each minus its color's mean in " +
        "the training images, divided by the standard deviation.",
        [["pixels, normalized", row(patches, area, n), "pixels"]]],
    [n < 0 ? "Add the position" : "Embed, add the position", `${n < 0 ? width : area} → ${width}`,
      (n < 0 ? "" : "A linear map makes the embedding. Its number 1, pixel × weight: " +
      `${products(row(patches, area, n), filter)} + bias = ${fixed(embedded[0])}. Then the position: `) +
      adding(embedded, position, start),
      [["embedding", embedded], ["position", position], ["token", start]]],
    ["LayerNorm", `layer ${layer + 1} begins: ${width} → ${width}`,
      normalizing(at("x"), at("normed1")), [["token", at("x")], ["normalized", at("normed1")]]],
    ["Query, key and value", `head ${head + 1}: ${width} → 3 × ${dim}`,
      "Three linear maps of the normalized token. All other tokens have theirs, too.",
      [["query: looks for", query], ["key: can be found by", k(token)], ["value: gives", v(token)]]],
    ["Compare with all tokens", `query · key / √${dim}, for ${tokens} tokens`,
      `The highest is that of ${other}: ${products(query, k(most))} = ${fixed(dot(query, k(most)))}; ` +
      `divided by √${dim}: ${high}.`, [["scores", scores, "map"]]],
    ["Softmax", `${tokens} shares that add up to 100 %`,
      unless(isOff, `For ${other}: e^${high} / ${fixed(powers)} = ${percent(shares[most])}.`),
      [["attention", shares, "map"]]],
    ["Collect the values", `Σ share × value: ${dim}`,
      unless(isOff, `Number 1: ${fixed(shares[most])} × ${factor(v(most)[0])} from ${other}, plus the ` +
      `same for the ${tokens - 1} others = ${fixed(own[0])}.`), [["collected", own]]],
    ["Join the heads", `${heads} × ${dim} → ${width}`,
      unless(isSkipped, "The results of all heads, one after the other, go through one linear map."),
      [["all heads", at("attended")], ["attention adds", at("joined")]]],
    ["Add (residual)", "token + attention", adding(at("x"), at("joined"), at("middle")),
      [["token", at("middle")]]],
    ["LayerNorm and MLP", `${width} → ${model.hidden} → ${width}`,
      unless(isSkipped, `${normalizing(at("middle"), at("normed2"))} GELU lets large numbers pass and ` +
      `almost silences negative ones: ${fixed(wide[0])} becomes ${fixed(active[0])}.`),
      [["normalized", at("normed2")], ["widened", wide], ["after GELU", active],
        ["MLP adds", at("narrow")]]],
    ["Add (residual)", `token + MLP: layer ${layer + 1} ends`,
      adding(at("middle"), at("narrow"), at("out")), [["token", at("out")]]],
    [isRead ? "Head" : "If the head read this token now",
      `LayerNorm, ${width} → ${classes.length}`, "At the end, the head reads " + (classToken
        ? "the class token alone." : "the mean of all normalized patches: the mean of such logits.") +
      (classToken && n >= 0 ? " A patch's own last token is not read: what it shows reaches the class " +
        "token as a value, in Collect the values. Choose Class token to see it." : ""),
      [["logits", logits, "classes"], [`softmax${divided}`, probabilities(logits), "classes"]]],
  ];
}

function element(parent, tag, text = "", values = {}) {
  const made = Object.assign(document.createElement(tag), { textContent: text }, values);
  parent.append(made);
  return made;
}

const opened = () => steps(chosen.query + classToken, chosen.layer, chosen.head);
function makeSteps() {
  for (let at = 0; at < 12; at++) {
    const box = element($("computed"), "details");
    for (const tag of ["summary", "div"]) element(box, tag);
    box.ontoggle = () => result && drawStep(box, opened()[at]);
  }
}

function drawSteps() {
  const found = opened();
  for (const name of ["layer", "head"])
    for (const [at, button] of all(`#which-${name} button`).entries())
      button.setAttribute("aria-pressed", at === chosen[name]);
  $("next").textContent = chosen.layer < depth - 1 ? "Next layer ▶" : "Back to layer 1";
  all("#computed details").forEach((box, at) => drawStep(box, found[at]));
}

function drawStep(box, [title, shapes, words, parts]) {
  const [summary, body] = box.children;
  for (const each of [summary, body]) each.replaceChildren();
  element(summary, "b", title);
  element(summary, "span", shapes, { className: "soft" });
  if (box.open) element(body, "p", words);
  for (const [name, values, kind] of parts) {
    drawPart(element(summary, "span", "", { className: "part" }), name, values, kind);
    if (!box.open) continue;
    element(body, "p", `${name}: ${values.length} numbers`, { className: "soft" });
    element(body, "pre", written(values, kind), { tabIndex: 0 });
  }
}

// A vector as a strip of colors or, one number a token, as a map; with the range of its numbers.
function drawPart(parent, name, values, kind) {
  element(parent, "span", name);
  const canvas = element(parent, "canvas", "", { role: "img", ariaLabel: name });
  if (kind === "map") {
    const bar = element(parent, "span", "", { className: "scale" }), low = Math.min(...values);
    element(bar, "i");
    canvas.className = "map";
    return glow(canvas, values.subarray(classToken), name, { low, query: chosen.query, name: fixed });
  }
  const context = canvas.getContext("2d"), most = Math.max(...values.map(Math.abs), 1e-9);
  [canvas.width, canvas.height] = [values.length, 1];
  for (const [i, value] of values.entries()) {
    const color = value < 0 ? "52 120 200" : "226 112 40";
    context.fillStyle = `rgb(${color} / ${Math.abs(value) / most})`;
    context.fillRect(i, 0, 1, 1);
  }
  const range = [Math.min(...values), Math.max(...values)].map((each) => fixed(each, 2));
  element(parent, "span", range.join(" … "), { className: "soft" });
}

// All numbers as text, in rows that follow the image or the classes where there are any.
function written(values, kind) {
  const numbers = Array.from(values, (value) => fixed(value).padStart(8)), rows = [];
  if (kind === "classes") return numbers.map((each, k) => `${each}  ${classes[k]}`).join("\n");
  if (kind === "map" && classToken) rows.push(`${numbers.shift()}  class token`);
  const long = kind === "pixels" ? patch : kind ? grid : 8;
  for (let i = 0; i < numbers.length; i += long) {
    if (kind === "pixels" && i % patch ** 2 === 0) rows.push(["red", "green", "blue"][i / patch ** 2]);
    rows.push(numbers.slice(i, i + long).join(""));
  }
  return rows.join("\n");
}
