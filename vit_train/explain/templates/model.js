// The Vision Transformer: from pixels to logits, and back to the patches behind them, in a worker.
//
// A matrix (T,D) is T rows of D numbers, one after the other. Each step of the model returns its
// result and the step back, from the gradient of the result to that of the input.
"use strict";

const weights = new Map(), transposes = new Map();
let model, tokens, width, heads, headWidth; // its sizes and names; T, D, H, D/H

const POWERS = Array.from({ length: 32 }, (_, exponent) => 2 ** (Math.max(exponent, 1) - 25));

// Half-precision numbers are stored as all low bytes, then all high bytes, which compresses better.
function fromHalf(bytes, count) {
  return Float32Array.from({ length: count }, (_, i) => {
    const high = bytes[count + i], exponent = (high >> 2) & 31;
    const fraction = ((high & 3) << 8) | bytes[i];
    const size = (fraction + (exponent ? 1024 : 0)) * POWERS[exponent];
    return high & 128 ? -size : size;
  });
}

// Read the weights; return the bytes after them: images and earlier epochs.
async function setUp(data) {
  const packed = Uint8Array.from(atob(data.weights), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  ({ model, model: { width, heads } } = data);
  [headWidth, tokens] = [width / heads, model.grid ** 2 + model.classToken];
  const numbers = fromHalf(bytes, model.tensors.reduce((sum, [, size]) => sum + size, 0));
  let start = 0;
  for (const [name, size] of model.tensors)
    weights.set(name, numbers.subarray(start, (start += size)));
  return bytes.subarray(2 * start);
}

// `| 0` converts array indices to integers: powers and divisions give floating-point numbers, with
// which the loops take three times as long.
function dot(a, i, b, j, count) {
  let sum = 0;
  [i, j, count] = [i | 0, j | 0, count | 0];
  for (let n = 0; n < count; n++) sum += a[i + n] * b[j + n];
  return sum;
}

// a += factor · b
function add(a, i, factor, b, j, count) {
  [i, j, count] = [i | 0, j | 0, count | 0];
  for (let n = 0; n < count; n++) a[i + n] += factor * b[j + n];
}

// x (T,I) times the transpose of a matrix (O,I), plus a bias (O): (T,O). Four rows and two columns
// of the result at a time share what is read; at the edges, some are computed several times.
function product(x, width, matrix, bias) {
  const inputs = width | 0, rows = (x.length / inputs) | 0, outputs = (matrix.length / inputs) | 0;
  const y = new Float32Array(rows * outputs), last = rows - 1;
  for (let t = 0; t < rows; t += 4) {
    const t1 = Math.min(t + 1, last), t2 = Math.min(t + 2, last), t3 = Math.min(t + 3, last);
    const a = t * inputs, b = t1 * inputs, c = t2 * inputs, d = t3 * inputs;
    for (let o = 0; o < outputs; o += 2) {
      const o1 = Math.min(o + 1, outputs - 1), p = o * inputs, q = o1 * inputs;
      let s0 = bias ? bias[o] : 0, s1 = s0, s2 = s0, s3 = s0;
      let u0 = bias ? bias[o1] : 0, u1 = u0, u2 = u0, u3 = u0;
      for (let i = 0; i < inputs; i++) {
        const v = matrix[p + i], w = matrix[q + i];
        const x0 = x[a + i], x1 = x[b + i], x2 = x[c + i], x3 = x[d + i];
        s0 += v * x0, s1 += v * x1, s2 += v * x2, s3 += v * x3;
        u0 += w * x0, u1 += w * x1, u2 += w * x2, u3 += w * x3;
      }
      y[t * outputs + o] = s0, y[t * outputs + o1] = u0;
      y[t1 * outputs + o] = s1, y[t1 * outputs + o1] = u1;
      y[t2 * outputs + o] = s2, y[t2 * outputs + o1] = u2;
      y[t3 * outputs + o] = s3, y[t3 * outputs + o1] = u3;
    }
  }
  return y;
}

function linear(x, inputs, name) {
  const matrix = weights.get(`${name}.weight`), outputs = matrix.length / inputs;
  const mirrored = (_, i) => matrix[(i % outputs) * inputs + Math.floor(i / outputs)];
  return [product(x, inputs, matrix, weights.get(`${name}.bias`)), (dy) => {
    if (!transposes.has(name)) transposes.set(name, matrix.map(mirrored));
    return product(dy, outputs, transposes.get(name));
  }];
}

// LayerNorm: each row minus its mean, divided by its standard deviation, then scaled and shifted.
function norm(x, name) {
  const scale = weights.get(`${name}.weight`), shift = weights.get(`${name}.bias`);
  const normed = new Float32Array(x.length), y = new Float32Array(x.length), inverses = [];
  for (let at = 0; at < x.length; at += width) {
    let mean = 0, variance = 0;
    for (let i = at; i < at + width; i++) mean += x[i] / width;
    for (let i = at; i < at + width; i++) variance += (x[i] - mean) ** 2 / width;
    const inverse = 1 / Math.sqrt(variance + model.eps);
    inverses.push(inverse);
    for (let i = 0; i < width; i++) {
      normed[at + i] = (x[at + i] - mean) * inverse;
      y[at + i] = normed[at + i] * (scale ? scale[i] : 1) + (shift ? shift[i] : 0);
    }
  }
  // dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ, where g = dy · scale
  return [y, (dy) => {
    const dx = dy.map((each, i) => each * (scale ? scale[i % width] : 1));
    for (const [row, inverse] of inverses.entries()) {
      const at = row * width, g = dx.subarray(at, at + width);
      const mean = g.reduce((a, b) => a + b) / width, along = dot(g, 0, normed, at, width) / width;
      g.forEach((each, i) => (g[i] = (each - mean - normed[at + i] * along) * inverse));
    }
    return dx;
  }];
}

// The error function, to 1.5e-7 (Abramowitz & Stegun, 7.1.26).
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const high = ((1.061405429 * t - 1.453152027) * t + 1.421413741) * t;
  const tail = ((high - 0.284496736) * t + 0.254829592) * t * Math.exp(-x * x);
  return x < 0 ? tail - 1 : 1 - tail;
}

// GELU: x · Φ(x), whose slope is Φ(x) + x · φ(x).
function gelu(x) {
  const below = x.map((each) => (1 + erf(each * Math.SQRT1_2)) / 2);
  const density = (each) => Math.exp((-each * each) / 2) / Math.sqrt(2 * Math.PI);
  const back = (dy) => dy.map((each, i) => each * (below[i] + x[i] * density(x[i])));
  return [x.map((each, i) => each * below[i]), back];
}

function softmax(row) {
  const most = Math.max(...row);
  let sum = 0;
  for (let i = 0; i < row.length; i++) sum += row[i] = Math.exp(row[i] - most);
  for (let i = 0; i < row.length; i++) row[i] /= sum;
}

// Attention of all heads, from queries, keys and values (T,3D). The heads in `off` give nothing.
// The third result is the attention (H,T,T); its gradient is put first into `gradients`.
function attend(qkv, off, gradients) {
  const shares = new Float32Array(heads * tokens ** 2), y = new Float32Array(tokens * width);
  const root = Math.sqrt(headWidth), next = 3 * width; // from a token to the next one
  const each = (visit) => {
    for (let at = 0; at < heads * tokens; at++) {
      const head = Math.floor(at / tokens), t = at % tokens, start = head * headWidth;
      visit(head, at * tokens, t * next + start, start + width, t * width + start);
    }
  };
  each((head, from, query, key, to) => {
    const row = shares.subarray(from, from + tokens);
    for (let s = 0; s < tokens; s++)
      row[s] = dot(qkv, query, qkv, key + s * next, headWidth) / root;
    softmax(row);
    for (let s = 0; s < tokens && !off.has(head); s++)
      add(y, to, row[s], qkv, key + width + s * next, headWidth);
  });
  return [y, (dy) => {
    const dShares = new Float32Array(shares.length), dQkv = new Float32Array(qkv.length);
    each((head, from, query, key, to) => {
      if (off.has(head)) return;
      for (let s = 0; s < tokens; s++)
        dShares[from + s] = dot(dy, to, qkv, key + width + s * next, headWidth);
      const mean = dot(shares, from, dShares, from, tokens);
      for (let s = 0, other = key; s < tokens; s++, other += next) {
        const share = shares[from + s], slope = (share * (dShares[from + s] - mean)) / root;
        add(dQkv, query, slope, qkv, other, headWidth);
        add(dQkv, other, slope, qkv, query, headWidth);
        add(dQkv, other + width, share, dy, to, headWidth);
      }
    });
    gradients.unshift(dShares);
    return dQkv;
  }, shares];
}

// Return the tokens after a block, the step back, the attention, and every step on the way. A
// skipped block adds nothing.
function block(x, name, { off, isSkipped }, gradients) {
  const sum = (a, b) => a.map((each, i) => each + b[i]);
  const [normed1, backNorm1] = norm(x, `${name}.norm1`);
  const [qkv, backQkv] = linear(normed1, width, `${name}.attn.qkv`);
  const [attended, backAttended, shares] = attend(qkv, off, gradients);
  const [joined, backJoined] = linear(attended, width, `${name}.attn.proj`);
  if (isSkipped) for (const each of [shares, joined]) each.fill(0);
  const middle = sum(x, joined);
  const [normed2, backNorm2] = norm(middle, `${name}.norm2`);
  const [wide, backWide] = linear(normed2, width, `${name}.mlp.fc1`);
  const [active, backActive] = gelu(wide);
  const [narrow, backNarrow] = linear(active, model.hidden, `${name}.mlp.fc2`);
  if (isSkipped) narrow.fill(0);
  const out = sum(middle, narrow);
  const steps = { x, normed1, qkv, attended, joined, middle, normed2, wide, active, narrow, out };
  return [out, (dy) => {
    if (isSkipped) {
      gradients.unshift(new Float32Array(shares.length));
      return dy;
    }
    const dMiddle = sum(dy, backNorm2(backWide(backActive(backNarrow(dy)))));
    return sum(dMiddle, backNorm1(backQkv(backAttended(backJoined(dMiddle)))));
  }, shares, steps];
}

// Pixels (S,S,3) of 0 to 255 → normalized patches (N,3P²) and their tokens, before and after the
// positions. Hidden patches get the mean color. The patch n gets the position of the place
// order[n], or none if that is -1.
function embed(pixels, { hidden = [], order }) {
  const { grid, patch, size, scale, shift, classToken } = model, area = patch ** 2;
  const patches = new Float32Array(3 * size ** 2).map((_, i) => {
    const n = Math.floor(i / (3 * area)), channel = Math.floor(i / area) % 3;
    const row = Math.floor(n / grid) * patch + (Math.floor(i / patch) % patch);
    const at = row * size + (n % grid) * patch + (i % patch);
    return hidden.includes(n) ? 0 : pixels[3 * at + channel] * scale[channel] + shift[channel];
  });
  const embedded = new Float32Array(tokens * width), table = weights.get("positions");
  embedded.set(linear(patches, 3 * area, "patch_embed.proj")[0], classToken * width);
  if (classToken) embedded.set(weights.get("cls_token"));
  const x = embedded.slice();
  for (let t = 0; table && t < tokens; t++) {
    const place = t < classToken || !order ? t : order[t - classToken] + classToken;
    if (t < classToken || place >= classToken) add(x, t * width, 1, table, place * width, width);
  }
  return { patches, embedded, x };
}

// Return all steps from pixels to logits, the attention of each layer, and a function that returns
// its gradients for the logit of a class.
function forward(pixels, { off = [], skip = [], ...changes }) {
  const gradients = [], layers = [], backs = [], traces = [];
  let { x, ...start } = embed(pixels, changes);
  for (let layer = 0; layer < model.depth; layer++) {
    const silent = new Set(off.filter(([each]) => each === layer).map(([, head]) => head));
    const change = { off: silent, isSkipped: skip.includes(layer) };
    [x, backs[layer], layers[layer], traces[layer]] =
      block(x, `blocks.${layer}`, change, gradients);
  }
  const read = model.classToken ? x.subarray(0, width) : x; // all patches without a class token
  const [normed, backNorm] = norm(read, "norm"), rows = read.length / width;
  const features = new Float32Array(width);
  for (let t = 0; t < rows; t++) add(features, 0, 1 / rows, normed, t * width, width);
  const [logits, backLogits] = linear(features, width, "head");
  return [{ logits, layers, traces, ...start }, (target) => {
    const dFeatures = backLogits(logits.map((_, k) => (k === target ? 1 : 0)));
    const dx = new Float32Array(x.length);
    dx.set(backNorm(normed.map((_, i) => dFeatures[i % width] / rows)));
    backs.reduceRight((dy, back) => back(dy), dx);
    return gradients;
  }];
}

// The logit lens (nostalgebraist 2020): what the final LayerNorm and the head would read from each
// token (T,K) before each layer, after its attention, and so on up to the end.
function lens(traces) {
  const states = traces.flatMap(({ x, middle }) => [x, middle]).concat(traces.at(-1).out);
  return states.map((x) => linear(norm(x, "norm")[0], width, "head")[0]);
}

// Multiply the layers' matrices (T,T), each with the identity added and scaled by `keep`. Return
// the row of the class token or, without one, the mean over all patches without their own share.
function through(matrices, keep) {
  let together = new Float32Array(tokens ** 2).map((_, i) => (i % (tokens + 1) ? 0 : 1));
  for (const matrix of matrices) {
    const next = together.map((each) => keep * each);
    for (let i = 0; i < tokens ** 2; i++)
      add(next, i - (i % tokens), keep * matrix[i], together, (i % tokens) * tokens, tokens);
    together = next;
  }
  if (model.classToken) return together.slice(1, tokens);
  const map = new Float32Array(tokens);
  together.forEach((each, i) => (map[i % tokens] += i % (tokens + 1) ? each / tokens : 0));
  return map;
}

function meanOfHeads(matrices) {
  const mean = new Float32Array(tokens ** 2);
  for (let h = 0; h < heads; h++) add(mean, 0, 1 / heads, matrices, h * mean.length, mean.length);
  return mean;
}

// All that the page shows of an image with changes, or without what needs gradients (`isQuick`).
// `target` is the explained class or null.
function explain({ pixels, target, isQuick, ...changes }) {
  const start = performance.now(), [found, gradientsOf] = forward(pixels, changes);
  const { logits, layers, traces } = found;
  const forwardMs = performance.now() - start;
  if (isQuick) return { logits, layers, lens: lens(traces) };
  target ??= logits.indexOf(Math.max(...logits));
  const raised = gradientsOf(target).map((gradient, layer) =>
    meanOfHeads(gradient.map((each, i) => Math.max(0, each * layers[layer][i]))));
  const [rollout, relevance] = [through(layers.map(meanOfHeads), 0.5), through(raised, 1)];
  return { ...found, target, forwardMs, lens: lens(traces), rollout, relevance };
}

// Cosine similarities of the patches' positions (N,N); null for a model without positions.
function similarity() {
  const table = weights.get("positions")?.subarray(model.classToken * width), { grid } = model;
  const along = (n, m) => dot(table, n * width, table, m * width, width);
  return table ? new Float32Array(grid ** 4).map((_, i) => {
    const n = Math.floor(i / grid ** 2), m = i % grid ** 2;
    return along(n, m) / Math.sqrt(along(n, n) * along(m, m));
  }) : null;
}

// Rethrow errors of async functions, which otherwise would not reach the page's onerror.
self.onunhandledrejection = ({ reason }) => setTimeout(() => { throw reason; });
self.onmessage = async ({ data }) => {
  if (data.pixels) return self.postMessage(explain(data));
  const rest = await setUp(data);
  const filter = weights.get("patch_embed.proj.weight").slice(0, 3 * model.patch ** 2);
  self.postMessage({ rest, similarity: similarity(), filter });
};
