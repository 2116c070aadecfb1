// What was changed in the source? Lines before and after, the changed ones marked by sign and by element.

"use strict";

const CONTEXT_LINES = 3;

/** The longest common subsequence of two lists of lines, as [sign, line] pairs in reading order. */
function compareLines(before, after) {
  const lengths = Array.from({ length: before.length + 1 }, () => new Array(after.length + 1).fill(0));
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = after.length - 1; j >= 0; j -= 1) {
      lengths[i][j] =
        before[i] === after[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      pairs.push([" ", before[i]]);
      [i, j] = [i + 1, j + 1];
    } else if (i < before.length && (j === after.length || lengths[i + 1][j] >= lengths[i][j + 1])) {
      pairs.push(["-", before[i]]);
      i += 1;
    } else {
      pairs.push(["+", after[j]]);
      j += 1;
    }
  }
  return pairs;
}

/** The middle of `line` that `other` does not share: [start, end). */
function changedPart(line, other) {
  let start = 0;
  while (start < Math.min(line.length, other.length) && line[start] === other[start]) start += 1;
  let tail = 0;
  while (tail < Math.min(line.length, other.length) - start && line.at(-1 - tail) === other.at(-1 - tail)) tail += 1;
  return [start, line.length - tail];
}

function changeLine(sign, line, partner) {
  const name = { "-": "del", "+": "ins", " ": "span" }[sign];
  const words = { "-": "removed: ", "+": "added: ", " ": "" }[sign];
  const pieces = [line];
  if (partner !== undefined) {
    const [start, end] = changedPart(line, partner);
    if (end > start && end - start < line.trim().length) {
      pieces.splice(0, 1, line.slice(0, start), html("mark", {}, line.slice(start, end)), line.slice(end));
    }
  }
  return html(
    name,
    { class: "line" },
    html("span", { class: "sign", "aria-hidden": "true" }, `${sign} `),
    words && html("span", { class: "unseen" }, words),
    pieces,
    "\n",
  );
}

/** The whole change; long stretches without one are left out. */
function drawChange(change) {
  const pairs = compareLines(String(change.before ?? "").split("\n"), String(change.after ?? "").split("\n"));
  const near = pairs.map((_, index) =>
    pairs.slice(Math.max(0, index - CONTEXT_LINES), index + CONTEXT_LINES + 1).some(([sign]) => sign !== " "),
  );
  const lines = [];
  pairs.forEach(([sign, line], index) => {
    if (near[index]) lines.push(changeLine(sign, line, partnerOf(pairs, index)));
    else if (index === 0 || near[index - 1]) lines.push(html("span", { class: "line left-out" }, "  ⋯\n"));
  });
  return scrolling("Source change", "change", html("pre", {}, html("code", {}, lines)));
}

/** In a run of n removed lines followed by n added ones, the k-th of each belong together. */
function partnerOf(pairs, index) {
  const sign = pairs[index][0];
  if (sign === " ") return undefined;
  let first = index;
  while (first > 0 && pairs[first - 1][0] !== " ") first -= 1;
  let end = index;
  while (end < pairs.length && pairs[end][0] !== " ") end += 1;
  const run = pairs.slice(first, end);
  const half = run.length / 2;
  const paired = Number.isInteger(half) && run.every(([mark], place) => mark === (place < half ? "-" : "+"));
  if (!paired) return undefined;
  return run[(index - first + half) % run.length][1];
}
