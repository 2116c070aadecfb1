// How did it go wrong? One fault's run, event by event: strips, and a table of counters that can be stepped.

"use strict";

/** Letters in the ledger's order that occur in the rows, then any others. */
function columnsOf(rows, letters) {
  const present = new Set(rows.flatMap((row) => Object.keys(row.faulty)));
  return [...Object.keys(letters).filter((letter) => present.delete(letter)), ...present];
}

/** Columns that never change and never go wrong say nothing; they are told in one line instead. */
function isConstant(rows, letter) {
  const first = rows[0].faulty[letter];
  return rows.every((row) => row.faulty[letter] === first && !row.wrong.includes(letter));
}

function rightValue(row, letter) {
  return (row.right ?? row.faulty)[letter];
}

/** The right code would come to another ledger here, or would not take the event at all. */
function isWrong(row) {
  return row.refused || row.wrong.length > 0;
}

/** "C is 6, right would be 4; ..." for the counters of a row that are wrong. */
function wrongInWords(row) {
  return row.wrong
    .map((letter) => `${letter} is ${shown(row.faulty[letter])}, right would be ${shown(rightValue(row, letter))}`)
    .join("; ");
}

function counterCell(row, letter) {
  const value = shown(row.faulty[letter]);
  if (!row.wrong.includes(letter)) return html("td", {}, value);
  return html(
    "td",
    { class: "wrong" },
    html("span", { "aria-hidden": "true" }, "▲ "),
    html("span", { class: "unseen" }, "wrong: "),
    html("b", {}, value),
    html("span", { class: "right-value" }, `right: ${shown(rightValue(row, letter))}`),
  );
}

function drawTable(rows, columns, letters, ghosts, go) {
  const head = columns.map((letter) =>
    html(
      "th",
      { scope: "col", class: ghosts.includes(letter) && "ghost", title: letters[letter] ?? letter },
      html("span", { class: "letter" }, letter),
    ),
  );
  const lines = rows.map((row, index) => {
    const button = html("button", { type: "button", "aria-label": `Go to step ${index + 1}` }, String(index + 1));
    button.addEventListener("click", () => go(index));
    const line = html(
      "tr",
      {},
      html("td", { class: "step" }, button),
      html(
        "th",
        { scope: "row" },
        html("code", {}, row.event),
        row.refused && html("span", { class: "refused wrong-words" }, "▲ refused by the right code"),
      ),
      columns.map((letter) => counterCell(row, letter)),
    );
    line.addEventListener("click", () => go(index));
    return line;
  });
  const table = html(
    "table",
    { class: "events" },
    html("caption", { class: "unseen" }, "Counters after each event"),
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "step"), html("th", { scope: "col" }, "event"), head)),
    html("tbody", {}, lines),
  );
  return { table, lines };
}

function constantsLine(rows, letters) {
  if (!letters.length) return null;
  return html(
    "p",
    { class: "constants" },
    "The same throughout: ",
    letters.map((letter) => `${letter}\u00a0=\u00a0${shown(rows[0].faulty[letter])}`).join(", "),
    ".",
  );
}

/** The controls. `go` takes an index; `show(index)` keeps them in step with it. */
function drawControls(count, firstWrong, go, current) {
  const button = (words, label, target) => {
    const made = html("button", { type: "button", "aria-label": label }, words);
    made.addEventListener("click", () => go(target()));
    return made;
  };
  const back = button("← Back", "Previous step", () => current() - 1);
  const next = button("Next →", "Next step", () => current() + 1);
  const slider = html("input", { type: "range", min: 1, max: count, step: 1, "aria-label": "Step" });
  slider.addEventListener("input", () => go(Number(slider.value) - 1));
  const wrong = firstWrong >= 0 && button("▲ Where it goes wrong", "Go to the first wrong step", () => firstWrong);
  const show = (index) => {
    back.disabled = index === 0;
    next.disabled = index === count - 1;
    slider.value = String(index + 1);
    slider.setAttribute("aria-valuetext", `step ${index + 1} of ${count}`);
  };
  return { element: html("div", { class: "controls" }, back, next, slider, wrong), show };
}

/** The whole timeline; it starts where the run first goes wrong. */
function drawTimeline(fault, letters, ghosts) {
  const { rows } = fault;
  const blockSize = Math.max(1, Number(fault.rules?.B) || 1);
  const firstWrong = rows.findIndex(isWrong);
  // A wrong decision follows the last event; else the story begins where a counter goes wrong.
  let index = firstWrong >= 0 ? firstWrong : fault.decision ? rows.length - 1 : 0;

  const columns = columnsOf(rows, letters);
  const changing = columns.filter((letter) => !isConstant(rows, letter));
  const controls = drawControls(rows.length, firstWrong, (target) => go(target), () => index);
  const { table, lines } = drawTable(rows, changing, letters, ghosts, (target) => go(target));
  const now = html("p", { class: "now", "aria-live": "polite" });
  const moment = html("div", { class: "moment" });
  const tableBox = scrolling("Counters after each event", "events-box", table);

  function go(target) {
    index = Math.min(Math.max(target, 0), rows.length - 1);
    show();
  }

  function show() {
    const row = rows[index];
    controls.show(index);
    now.replaceChildren(
      html("b", {}, `Step ${index + 1} of ${rows.length}`),
      " ",
      html("code", {}, row.event),
      ...(row.note ? [" ", row.refused ? html("strong", { class: "wrong-words" }, `▲ ${row.note}`) : row.note] : []),
      ...(row.wrong.length ? [" ", html("strong", { class: "wrong-words" }, `▲ ${wrongInWords(row)}.`)] : []),
    );
    moment.replaceChildren(...(row.strip ? [drawMoment(row.strip, blockSize, !isWrong(row) && !row.strip.right)] : []));
    lines.forEach((line, place) => {
      line.className = place === index ? "current" : place > index ? "later" : "earlier";
      if (place === index) line.setAttribute("aria-current", "step");
      else line.removeAttribute("aria-current");
    });
    scrollToFrontier(moment, row.strip);
    scrollToWrong(tableBox, lines[index]);
  }

  const timeline = html(
    "div",
    { class: "timeline", tabindex: 0, role: "group", "aria-label": "Timeline; left and right arrow keys step" },
    controls.element,
    now,
    moment,
    tableBox,
    constantsLine(rows, columns.filter((letter) => isConstant(rows, letter))),
  );
  timeline.addEventListener("keydown", (event) => {
    // A scrolling box that has the focus needs its arrow keys; a button in it does not.
    if (event.target.closest(".scroll, button")?.matches(".scroll")) return;
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const target = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: rows.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    go(target);
  });
  show();
  // Before it is on the page nothing has a size, so nothing can be scrolled into view.
  requestAnimationFrame(show);
  return timeline;
}

/** On narrow screens the table is wider than its box: bring the wrong counter into view. */
function scrollToWrong(box, line) {
  const cell = line.querySelector(".wrong");
  if (!cell || box.scrollWidth <= box.clientWidth) return;
  const hidden = cell.offsetLeft + cell.offsetWidth - box.scrollLeft > box.clientWidth || cell.offsetLeft < box.scrollLeft;
  if (hidden) box.scrollLeft = cell.offsetLeft + cell.offsetWidth - box.clientWidth + 8;
}

/** On narrow screens the interesting place of a long strip is where the frontier is. */
function scrollToFrontier(moment, strip) {
  const box = moment.querySelector(".strips");
  if (!box || !strip || box.scrollWidth <= box.clientWidth) return;
  const drawn = strip.faulty ?? strip.right;
  const frontier = strip.faultyFrontier ?? drawn.first;
  box.scrollLeft = (frontier - drawn.first) * cellWidth(drawn.tokens.length) - box.clientWidth / 2;
}
