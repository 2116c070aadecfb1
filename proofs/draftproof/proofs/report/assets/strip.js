// What does one request look like at one moment? Its tokens, whose KV is valid, its frontier, its blocks.

"use strict";

const KV_CLASSES = { v: "valid", e: "enqueued", d: "draft", n: "none" };
const KV_WORDS = { v: "valid KV", e: "enqueued", d: "a draft's KV", n: "no KV" };

const STRIP = { left: 10, top: 24, height: 28, bar: 6, bottom: 34 };

/** Wide cells while they fit, narrow ones for long requests. */
function cellWidth(count) {
  return count > 28 ? 26 : 36;
}

function shortened(token, width) {
  const room = width > 30 ? 4 : width > 22 ? 3 : 2;
  return token.length > room ? token.slice(0, room - 1) + "…" : token;
}

/** The positions at which two strips have another token or another kind of KV. */
function differences(one, other) {
  const found = new Set();
  if (!one || !other) return found;
  const last = Math.max(one.first + one.tokens.length, other.first + other.tokens.length);
  for (let position = Math.min(one.first, other.first); position < last; position += 1) {
    const same = ["tokens", "kv", "known", "holds"].every(
      (part) => one[part][position - one.first] === other[part][position - other.first],
    );
    if (!same) found.add(position);
  }
  return found;
}

function isRegistered(strip, position) {
  return strip.registered[position - strip.first] === "1";
}

/** Runs of positions that satisfy `holds`, as [first, last] pairs. */
function runs([first, end], holds) {
  const found = [];
  for (let position = first; position < end; position += 1) {
    if (!holds(position)) continue;
    if (found.length && found.at(-1)[1] === position - 1) found.at(-1)[1] = position;
    else found.push([position, position]);
  }
  return found;
}

/** What one cell says. */
function cellInWords(strip, index) {
  const holds = strip.holds[index];
  const token = strip.tokens[index] || "no token";
  return [
    strip.known[index] === "1" ? token : `${token}, a draft that is not part of the text`,
    holds ? `the KV of ${holds} instead` : KV_WORDS[strip.kv[index]],
  ].join(", ");
}

/** What the picture says, in a sentence. */
function stripInWords(strip, frontier) {
  const kv = strip.tokens.map((_, index) => `${strip.first + index}: ${cellInWords(strip, index)}`);
  const extent = [strip.first, strip.first + strip.tokens.length];
  const blocks = runs(extent, (position) => isRegistered(strip, position)).map(([from, to]) => `${from} to ${to}`);
  return [
    kv.length ? `Positions ${kv.join("; ")}.` : "No positions yet.",
    frontier === null || frontier === undefined ? "" : `Frontier ${frontier}.`,
    blocks.length ? `Registered: ${blocks.join(", ")}.` : "Nothing registered.",
  ].join(" ");
}

/** One strip. `extent` is [first, end): both strips of a moment share it, so that positions align. */
function drawStrip(strip, { other, frontier, wrongFrontier, different, extent, blockSize, label }) {
  const [first, end] = extent;
  const width = cellWidth(end - first);
  const at = (position) => STRIP.left + (position - first) * width;
  const floor = STRIP.top + STRIP.height;
  const size = [Math.max(at(end) + STRIP.left + 24, 240), floor + STRIP.bottom];
  const drawing = shape("svg", {
    class: "strip",
    role: "img",
    width: size[0],
    height: size[1],
    viewBox: `0 0 ${size[0]} ${size[1]}`,
    "aria-label": `${label}. ${stripInWords(strip, frontier)}`,
  });
  for (let position = first; position < end; position += 1) {
    if (position >= strip.first && position < strip.first + strip.tokens.length) continue;
    const x = at(position);
    drawing.append(
      shape("rect", { x: x + 3, y: STRIP.top + 2, width: width - 6, height: STRIP.height - 4, class: "absent" }),
      shape("text", { x: x + width / 2, y: floor + 22, class: "position" }, String(position)),
    );
  }
  strip.tokens.forEach((token, index) => {
    const position = strip.first + index;
    const x = at(position);
    const box = { x: x + 1, y: STRIP.top, width: width - 2, height: STRIP.height, rx: 2 };
    const code = strip.kv[index];
    const holds = strip.holds[index];
    const words = strip.known[index] === "1" ? shortened(token, width) : `(${shortened(token, width - 12)})`;
    drawing.append(
      shape(
        "g",
        {},
        shape("title", {}, `position ${position}: ${cellInWords(strip, index)}`),
        shape("rect", { ...box, class: `cell ${KV_CLASSES[code]}` }),
        different.has(position) && shape("rect", { ...box, class: "different" }),
        shape("text", { x: x + width / 2, y: STRIP.top + (holds ? 13 : 19), class: "token" }, words),
        holds && shape("text", { x: x + width / 2, y: STRIP.top + 24, class: "holds-kv" }, `KV ${shortened(holds, width - 12)}`),
        shape("text", { x: x + width / 2, y: floor + 22, class: "position" }, String(position)),
      ),
    );
  });
  for (let edge = (Math.floor(first / blockSize) + 1) * blockSize; edge <= end; edge += blockSize) {
    drawing.append(shape("path", { d: `M${at(edge)} ${floor + 1}v11`, class: "block-edge" }));
  }
  const bars = [
    ["registered", (position) => isRegistered(strip, position)],
    ["registered wrong-bar", (position) => other && isRegistered(strip, position) && !isRegistered(other, position)],
    ["registered missing-bar", (position) => other && !isRegistered(strip, position) && isRegistered(other, position)],
  ];
  for (const [className, holds] of label === "right" ? bars.slice(0, 1) : bars) {
    for (const [from, to] of runs(extent, holds)) {
      const bar = { x: at(from) + 2, y: floor + STRIP.bar - 2, width: (to + 1 - from) * width - 4, height: 5 };
      drawing.append(shape("rect", { ...bar, class: className }));
    }
  }
  if (Number.isInteger(frontier)) {
    const place = Math.min(Math.max(frontier, first), end);
    drawing.append(frontierMark(at(place), frontier, wrongFrontier, size[0], floor));
  }
  return drawing;
}

/** A flag and a line; the words go to the side that has room. */
function frontierMark(x, frontier, wrong, width, floor) {
  const right = x > width - 100;
  const words = { x: right ? x - 8 : x + 8, y: 12, class: "note", "text-anchor": right ? "end" : "start" };
  return shape(
    "g",
    { class: wrong ? "frontier-mark wrong-frontier" : "frontier-mark" },
    shape("path", { d: `M${x} 6V${floor + 4}`, class: "frontier" }),
    shape("path", { d: `M${x - 5} 4h10l-5 7z`, class: "frontier-flag" }),
    shape("text", words, `${wrong ? "▲ " : ""}frontier ${frontier}`),
  );
}

/** Both strips of a moment in one scrolling box, faulty above right. */
function drawMoment(moment, blockSize, agrees) {
  const { faulty, right, faultyFrontier, rightFrontier } = moment;
  const present = [faulty, right].filter(Boolean);
  const frontiers = [faultyFrontier, rightFrontier].filter(Number.isInteger);
  const extent = [
    Math.min(...present.map((strip) => strip.first)),
    Math.max(1, ...present.map((strip) => strip.first + strip.tokens.length), ...frontiers),
  ];
  const shared = { different: differences(faulty, right), extent, blockSize };
  const line = (strip, frontier, wrongFrontier, label) =>
    strip &&
    html(
      "div",
      { class: "strip-line" },
      html("p", { class: "strip-name" }, label),
      drawStrip(strip, { ...shared, other: strip === faulty ? right : faulty, frontier, wrongFrontier, label }),
    );
  return scrolling(
    "Tokens and their KV",
    "strips",
    line(faulty, faultyFrontier, Boolean(right) && faultyFrontier !== rightFrontier, agrees ? "faulty and right agree" : "faulty"),
    line(right, rightFrontier, false, "right"),
  );
}
