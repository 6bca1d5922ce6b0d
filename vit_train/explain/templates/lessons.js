// Six lessons: a question, something to do, and an answer that is computed from the page's images.

const CNN = 5; // the lesson with a CNN's view
const surveys = {};

// Compute all test images with the same changes; of changed ones, only the logits are kept.
function survey(changed = {}) {
  const needed = (all) => Object.keys(changed).length ? { logits: all.logits } : all;
  const found = () => Promise.all(images.map(async (each) => needed(await quick(each, changed))));
  return (surveys[JSON.stringify(changed)] ??= found());
}
const answersOf = (found) => found.map(({ logits }) => highest(logits));
const rightOf = (answers) => answers.filter((k, i) => k === model.labels[i]).length;
const ofAll = (number) => `${number} of the ${images.length} images`;
function said({ logits }) {
  const shares = probabilities(logits), best = highest(shares);
  return `${classes[best]} ${percent(shares[best])}`;
}

// The layer after which the lens first gives the final answer, and gives it up to the end.
function appearsIn({ lens, logits }) {
  let layer = depth;
  while (layer > 0 && highest(answerAt(lens[2 * layer - 2])) === highest(logits)) layer--;
  return layer;
}
// How far the logit of a class is above the others' highest where the head reads.
function lead(lens, k) {
  const shares = answerAt(lens), others = shares.filter((_, each) => each !== k);
  return fixed(model.temperature * Math.log(shares[k] / Math.max(...others)), 1);
}

// The mean of weight(n, m), over patches n and images, where n attends to the patch m.
function attending({ layers }, layer, head, weight) {
  return average(cells.map((_, n) => {
    const row = (head * tokens + n + classToken) * tokens;
    const shares = layers[layer].subarray(row + classToken, row + tokens);
    const sum = shares.reduce((so, share, m) => so + share * weight(n, m), 0);
    return sum / shares.reduce((a, b) => a + b);
  }));
}
const apart = (n, m) => [Math.floor(n / grid) - Math.floor(m / grid), (n % grid) - (m % grid)];
const isFar = (n, m) => Number(Math.max(...apart(n, m).map(Math.abs)) > 1);

const LESSONS = [{
  title: "What happens without attention?",
  todo: "This lesson switches attention off in all layers (Undo brings it back). Choose other images: " +
    "what does the model answer?",
  state: switchAllOff,
  async answer() {
    const after = answersOf(await survey({ off: headsOf(upTo(ENDS.off)) }));
    const before = rightOf(answersOf(await survey())), kinds = new Set(after).size;
    return `${ofAll(before)} are right with attention, ${rightOf(after)} without it, with ${kinds} ` +
      `${kinds > 1 ? "different answers" : "answer for all of them"}. ` + (classToken
      ? "The head reads the class token, which learns of the image only through attention: " +
        "without it, every image leaves it the same. The MLP works on each token by itself."
      : "Without attention, no patch learns of another: each judges its own few pixels, and the " +
        "head reads the mean of their judgments.");
  },
}, {
  title: "Does order matter?", tab: "positions",
  todo: "This lesson shuffles the positions (Undo brings them back). Shuffle again, or remove them, and " +
    "choose other images.",
  state: () => (chosen.order = similar ? 1 : null),
  async answer() {
    const before = answersOf(await survey()), changed = [];
    for (const order of [shuffled(1), cells.map(() => -1)])
      changed.push(answersOf(await survey({ order })).filter((k, i) => k !== before[i]).length);
    return `Shuffled, ${ofAll(changed[0])} get another answer; without positions, ${changed[1]}. ` +
      (similar ? "To attention, the patches are a set: only the position vector in a token tells " +
        "where it was. Where the answer stays, what the patches show is enough without their order."
      : "This model has no position vectors, so no order can matter to it.");
  },
}, {
  title: "What does a head look for?", tab: "heads",
  todo: "Point at patches: which maps follow the place you point at, and which stay on the object?",
  async answer() {
    const found = await survey(), distance = (n, m) => Math.hypot(...apart(n, m));
    const far = upTo(ENDS.off).map((i) => average(found.map((each) =>
      attending(each, Math.floor(i / heads), i % heads, distance))));
    const named = (value) => `head ${(far.indexOf(value) % heads) + 1} of layer ` +
      `${Math.floor(far.indexOf(value) / heads) + 1} (${fixed(value, 1)} patches away on average)`;
    return `Patches look nearest in ${named(Math.min(...far))}, and farthest in ` +
      `${named(Math.max(...far))}. A score is query · key, and both come from the token, which holds ` +
      "content and position: training decides which of them a head compares. So one head can look " +
      "at neighbors, whatever they show, and another for certain content, wherever it is.";
  },
}, {
  title: "In which layer does the class appear?",
  todo: `Read the ${classToken ? "class token" : "mean"}'s column from top to bottom: from which layer ` +
    "on does the answer stay the same? Switch that layer off with its button.",
  async answer(shown) {
    const found = await quick(shown), layer = appearsIn(found), k = highest(found.logits);
    const [from, middle, to] = found.lens.slice(2 * layer - 2), every = (await survey()).map(appearsIn);
    const where = upTo(depth + 1).filter((each) => every.includes(each)).map((each) =>
      `layer ${each} for ${every.filter((other) => other === each).length}`);
    return (layer ? `In this image, ${classes[k]} appears in layer ${layer}; before, the lens gives ` +
      `${classes[highest(answerAt(from))]}. Its logit minus the best other one is ${lead(from, k)} ` +
      `before the layer, ${lead(middle, k)} after its attention and ${lead(to, k)} after its MLP. `
      : `In this image, the lens gives ${classes[k]} from the start (layer 0). `) +
      `Over all images, the answer appears in ${where.join(", ")}. Layers only add to the residual ` +
      "stream, and the head reads fixed directions of it: the class appears where the sum tips.";
  },
}, {
  title: "When is it fooled?",
  todo: "Drag over patches to hide as few as you can until the answer changes.",
  async answer(shown) {
    const { relevance, logits } = await ask({ pixels: shown.pixels }), order = ranked(relevance);
    let number = 0, now = { logits };
    while (number < count && highest(now.logits) === highest(logits))
      now = await quick(shown, { hidden: order.slice(0, ++number) });
    const wrong = (await survey()).flatMap((each, i) => highest(each.logits) === model.labels[i] ? []
      : `${images[i].label}: ${said(each)}`);
    const gray = said(await quick(shown, { hidden: order }));
    const end = highest(now.logits) === highest(logits) ? "stays" : "becomes";
    return `Hiding the most relevant patches first, ${said({ logits })} ${end} ${said(now)} after ` +
      `${number} of ${count}. Unchanged, ${ofAll(wrong.length)} are taken for another class` +
      `${wrong.length ? ` (${wrong.join("; ")})` : ""}. The model weighs evidence and must choose one ` +
      `of its classes, whatever it sees: an image of nothing but the mean color is ${gray}.`;
  },
}, {
  title: "What would a CNN see?", tab: "heads",
  todo: "Select patches: the blue frame is all that 3×3 convolutions over patches could reach.",
  async answer() {
    const shares = (await survey()).flatMap((each) =>
      upTo(heads).map((head) => attending(each, 0, head, isFar)));
    const even = average(cells.flatMap((_, n) => cells.map((_, m) => isFar(n, m))));
    return `In layer 1, ${percent(average(shares))} of the attention among patches goes beyond the ` +
      `neighbors that a 3×3 convolution sees (even attention: ${percent(even)}). A CNN needs ${grid - 1} ` +
      "such layers from edge to edge; attention can connect any two patches in one. But a CNN has " +
      "neighbors built in, and the same weights everywhere; a ViT must learn both from images.";
  },
}];

function makeLessons() {
  for (const [number, lesson] of LESSONS.entries())
    element($("questions"), "button", lesson.title).onclick = () =>
      openLesson(chosen.lesson === number ? null : number);
  $("reply").ontoggle = answer;
  $("copy").onclick = async () => {
    const copied = navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    $("copy").textContent = await copied ? "Copied" : "Copy it from the address bar";
  };
}

// Open a lesson (null: none), with its changes unless a link has set them.
function openLesson(number, isNew = true) {
  chosen.lesson = number;
  $("reply").open = false;
  $("copy").textContent = "Copy a link to this";
  $("lesson").hidden = number === null;
  all("#questions button").forEach((each, at) => each.setAttribute("aria-pressed", at === number));
  const { todo = "", tab = "layers", state } = LESSONS[number] ?? chosen;
  $("todo").textContent = todo;
  if (!isNew) return;
  restore();
  state?.();
  set({ tab });
  update();
}

// Write the answer into the open lesson, and again for another image.
async function answer() {
  const { lesson } = chosen, shown = image, text = $("reply").lastElementChild;
  if (lesson === null || !$("reply").open) return;
  text.textContent = "Computing …";
  const words = await LESSONS[lesson].answer(shown);
  if (lesson === chosen.lesson && shown === image) text.textContent = words;
}

// Headless browsers dump a page once it has loaded; the open frame delays that until main() is done.
$("frame").contentDocument?.open();
main().catch(({ message }) => {
  $("alert").textContent = `This browser cannot run the model (${message}): use a newer one.`;
}).finally(() => $("frame").contentDocument?.close());
