// Which faults are there, and what is known of each? The list, its filters, and one story per fault.

"use strict";

/** "owner/repository#123" leads to its public thread; anything else stays text. */
function reportSource(source) {
  const parts = /^([\w.-]+)\/([\w.-]+)#(\d+)\b/.exec(source);
  if (!parts) return source;
  const href = `https://github.com/${parts[1]}/${parts[2]}/issues/${parts[3]}`;
  return html("a", { href, rel: "noreferrer noopener", target: "_blank" }, source);
}

function theoremLink(name) {
  if (!document.getElementById(`theorem-${name}`)) return name;
  return html("a", { href: `#theorem-${encodeURIComponent(name)}` }, name);
}

function counted(number, noun) {
  return `${shown(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function settings(fault) {
  const { rules } = fault;
  const pieces = [];
  if (rules) {
    pieces.push(`${counted(rules.K, "draft")} per step`, `blocks of ${counted(rules.B, "token")}`);
    pieces.push(rules.asynchronous ? "asynchronous scheduling" : "synchronous scheduling");
    if (rules.fence) pieces.push(`drafter's fence ${shown(rules.fence)}`);
  }
  if (Number.isInteger(fault.promptTokens)) pieces.push(`prompt of ${fault.promptTokens}`);
  return pieces.length ? html("p", { class: "settings" }, `The run${fault.pinned && !fault.ownNumbers ? ", with the report's own numbers" : ""}: ${pieces.join(", ")}.`) : null;
}

/** What a decision answered: a value, or of several named ones those that `other` has differently. */
function answer(value, other) {
  if (value === null || typeof value !== "object") return shown(value);
  const differing = Object.entries(value).filter(([key, one]) => JSON.stringify(one) !== JSON.stringify(other?.[key]));
  return differing.map(([key, one]) => `${key} = ${typeof one === "object" ? JSON.stringify(one) : shown(one)}`).join(", ");
}

function drawDecision(decision) {
  const pair = (name, value, className) => [html("dt", {}, name), html("dd", { class: className }, value)];
  return html(
    "dl",
    { class: "facts decision" },
    pair("call", html("code", {}, shown(decision.call)), ""),
    pair("faulty", `▲ ${answer(decision.faulty, decision.right)}`, "wrong-words"),
    pair("right", answer(decision.right, decision.faulty), ""),
    decision.broken?.length ? pair("breaks", decision.broken.join(", "), "") : [],
  );
}

function drawReports(reports) {
  const entries = reports.map((report) =>
    html(
      "li",
      {},
      html("span", { class: "source" }, report.engine && `${report.engine}: `, reportSource(report.source || report.id)),
      report.what_happens && html("p", {}, report.what_happens),
    ),
  );
  return html("section", {}, html("h4", {}, entries.length > 1 ? "Public reports" : "Public report"), html("ul", { class: "reports" }, entries));
}

function verdictWords(verdict) {
  if (!verdict) return ["not tried in this run", "missing"];
  if (verdict.found) return ["✓ found", "holds"];
  const missing = ["refuted", "replayed"].filter((part) => !verdict[part]);
  return [`✗ not found${missing.length ? ` (not ${missing.join(", not ")})` : ""}`, "fails"];
}

/** Everything below a fault's headline. Made when it is opened for the first time. */
function drawStory(fault, letters, ghosts) {
  const violated = (fault.theorem || fault.violated.length > 0) &&
    html(
      "p",
      { class: "settings" },
      "It breaks ",
      theoremLink(fault.theorem),
      fault.violated.length > 0 && [fault.theorem && ": ", html("code", {}, fault.violated.join(", "))],
      ".",
    );
  return html(
    "div",
    { class: "story" },
    fault.meaning && html("p", {}, fault.meaning),
    fault.outcome && html("p", { class: "result" }, fault.outcome),
    settings(fault),
    violated,
    fault.decision && drawDecision(fault.decision),
    fault.rows.length
      ? drawTimeline(fault, letters, ghosts)
      : !fault.decision && html("p", { class: "missing" }, "No trace was given for this fault."),
    fault.changes.map((change) =>
      html(
        "section",
        {},
        html("h4", {}, "The change to the source", change.function && [": ", html("code", {}, change.function)]),
        drawChange(change),
      ),
    ),
    fault.reports.length ? drawReports(fault.reports) : null,
  );
}

function drawFault(fault, letters, ghosts) {
  const [words, state] = verdictWords(fault.verdict);
  const details = html(
    "details",
    { class: "fault", id: `fault-${fault.name}` },
    html(
      "summary",
      {},
      html("span", { class: "fault-title" }, fault.title || fault.name),
      html(
        "span",
        { class: "fault-facts" },
        html("code", {}, fault.name),
        [...fault.engines, ...fault.areas].map((word) => html("span", { class: "tag" }, word)),
        fault.theorem && html("span", {}, `breaks ${fault.theorem}`),
        html("span", { class: state }, words),
      ),
    ),
  );
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(drawStory(fault, letters, ghosts));
  });
  return details;
}

/** What the search looks through. */
function searchText(fault) {
  const reports = fault.reports.flatMap((report) => Object.values(report));
  const parts = [fault.name, fault.title, fault.meaning, fault.theorem, fault.outcome, ...fault.violated, ...reports];
  return parts.join("\n").toLowerCase();
}

/** The list with its filters. */
function startFaults({ faults, letters, ghosts }) {
  const list = document.getElementById("fault-list");
  if (!list) return;
  const entries = faults.map((fault) => ({ fault, text: searchText(fault), element: drawFault(fault, letters, ghosts) }));
  const empty = html("p", { class: "missing", hidden: true }, "No fault matches. Clear the search or choose “all”.");
  list.append(...entries.map((entry) => entry.element), empty);

  const search = document.getElementById("search");
  const output = document.getElementById("shown");
  const filters = [
    [document.getElementById("by-engine"), (fault) => fault.engines],
    [document.getElementById("by-area"), (fault) => fault.areas],
    [document.getElementById("by-theorem"), (fault) => (fault.theorem ? [fault.theorem] : [])],
  ];
  for (const [select, valuesOf] of filters) {
    const values = [...new Set(faults.flatMap(valuesOf))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    select.append(...values.map((value) => html("option", { value }, value)));
    select.closest("label").hidden = values.length < 2;
    select.addEventListener("change", apply);
  }
  search.addEventListener("input", apply);
  search.form.addEventListener("submit", (event) => event.preventDefault());

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { fault, text, element } of entries) {
      const fits =
        words.every((word) => text.includes(word)) &&
        filters.every(([select, valuesOf]) => !select.value || valuesOf(fault).includes(select.value));
      element.hidden = !fits;
      count += fits ? 1 : 0;
    }
    empty.hidden = count > 0;
    output.textContent = count === faults.length ? `${count} faults` : `${count} of ${faults.length} faults`;
  }

  /** A link to a fault opens it. */
  function openLinked() {
    let name = location.hash.slice(1);
    try {
      name = decodeURIComponent(name);
    } catch {
      // Not one of our links.
    }
    const target = document.getElementById(name);
    if (target instanceof HTMLDetailsElement) {
      target.hidden = false;
      target.open = true;
      target.scrollIntoView();
    }
  }
  window.addEventListener("hashchange", openLinked);
  apply();
  openLinked();
}
