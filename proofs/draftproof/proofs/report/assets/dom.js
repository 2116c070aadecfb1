// How does data become part of the page? Only as text: nothing here parses HTML.

"use strict";

/** An HTML element. Attributes that are null or false are left out; children are nodes or text. */
function html(name, attributes = {}, ...children) {
  return furnish(document.createElement(name), attributes, children);
}

/** The same for SVG. */
function shape(name, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** A box that scrolls by itself and can be reached from the keyboard. */
function scrolling(label, className, ...children) {
  const attributes = { class: `scroll ${className}`.trim(), role: "region", "aria-label": label, tabindex: 0 };
  return html("div", attributes, ...children);
}

/** A counter's value in words. */
function shown(value) {
  if (value === null || value === undefined) return "–";
  if (value === true) return "yes";
  if (value === false) return "no";
  return String(value);
}
