// What every drawing uses: the data, numbers for people, elements, the tooltip, and movement by keys.
// Text from the data reaches the page through textContent and attributes only, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const streaming = data.mode === "weight_streaming";

const KINDS = {
  matmul: "#3f78dc", conv2d: "#17958a", attention: "#dd7a26", norm: "#8d5fd3", softmax: "#cf4d83",
  elementwise: "#7d8ea6", embedding: "#4c9f4b", reduction: "#ab8638", loss: "#c9443a", layout: "#59677a", update: "#595f6b",
};
// Stops of two ramps whose lightness rises evenly: viridis for utilization, inferno for memory.
const RAMPS = {
  utilization: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"],
  sram: ["#1b0c41", "#781c6d", "#cf4446", "#f98e09", "#fcec9c"],
};

const SVG = "http:" + "//www.w3.org/2000/svg"; // a name, not an address: nothing is fetched
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const by = (id) => document.getElementById(id);
const style = (element, properties) => (Object.assign(element.style, properties), element);

const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const significant = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const percent = (share, digits = 1) => {
  const least = 10 ** -digits / 2;
  return share > 0 && 100 * share < least ? `<${10 ** -digits}%` : `${number(100 * share, digits)}%`;
};
const kib = (bytes) => (bytes < 100 ? `${number(bytes)} B` : `${number(bytes / 1024, 1)} KiB`);
function scaled(value, units, base = 1000) {
  let index = 0;
  while (value >= base && index < units.length - 1) { value /= base; index += 1; }
  return `${significant(value)} ${units[index]}`;
}
const size = (bytes) => scaled(bytes, ["B", "kB", "MB", "GB", "TB", "PB"]);
const duration = (seconds) => {
  if (seconds === 0) return "0";
  if (seconds >= 1) return `${significant(seconds)} s`;
  return scaled(seconds * 1e9, ["ns", "µs", "ms"]);
};
const cyclesTime = (cycles) => duration(cycles / data.clock_hz);

function mix(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const index = Math.min(Math.floor(place), stops.length - 2);
  const part = (hex, at) => parseInt(hex.slice(1 + 2 * at, 3 + 2 * at), 16);
  const channel = (at) => Math.round(part(stops[index], at) + (part(stops[index + 1], at) - part(stops[index], at)) * (place - index));
  return `rgb(${channel(0)}, ${channel(1)}, ${channel(2)})`;
}

// The end of a dotted name says most: the longest whole end of `characters` at most, else a cut one.
function shortened(name, characters) {
  const parts = name.split(".");
  const ends = parts.map((_, index) => parts.slice(index).join("."));
  return ends.find((end) => end.length <= characters) ?? (characters < 4 ? "" : `${parts.at(-1).slice(0, characters - 1)}…`);
}

const tip = by("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 20 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 20}px`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });

// A mark is a shape that can be pointed at, reached by arrow keys, and picked. `text` is its tooltip and its name.
function mark(element, text, pick) {
  element.classList.add("mark");
  element.setAttribute("role", "option");
  element.setAttribute("aria-label", text.replaceAll("\n", ", "));
  element.setAttribute("tabindex", "-1");
  element.addEventListener("pointermove", (event) => showTip(text, event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    if (element.matches(":focus-visible")) showTip(text, box.left + box.width / 2, box.top + Math.min(box.height / 2, 60));
  });
  element.addEventListener("blur", hideTip);
  element.addEventListener("click", pick);
  return element;
}

// One stop of the tab key for all marks of a drawing; arrow keys go from mark to mark, Enter picks.
function reachable(container, marks, label) {
  container.setAttribute("role", "listbox");
  container.setAttribute("aria-label", label);
  if (marks.length) marks[0].setAttribute("tabindex", "0");
  container.addEventListener("keydown", (event) => {
    const at = marks.indexOf(event.target);
    if (at < 0) return;
    if (event.key === "Escape") return hideTip();
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return marks[at].dispatchEvent(new MouseEvent("click"));
    }
    const moves = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marks.length - 1 };
    const next = marks[moves[event.key]];
    if (!next) return;
    event.preventDefault();
    marks[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}

// Buttons of which one is pressed.
function choice(names, chosen, pick, label) {
  const group = html("div", { class: "switch", role: "group", "aria-label": label });
  for (const name of names) {
    const button = html("button", { type: "button", "aria-pressed": String(name === chosen) }, name);
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      pick(name);
    });
    group.append(button);
  }
  return group;
}

function legend(place, entries) {
  place.replaceChildren(...entries.map(([colour, name]) => html("span", {}, style(html("i"), { background: colour }), name)));
}

// Round times or counts for an axis of `span`: about `count` of them.
function ticks(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, index) => index * step);
}

const named = (row) => Object.fromEntries(data.kernels.names.map((name, index) => [name, row[index]]));
const kernels = data.kernels.rows.map(named);
const kernelsOf = new Map(); // by layer or region
for (const kernel of kernels) kernelsOf.set(kernel.layer, [...(kernelsOf.get(kernel.layer) ?? []), kernel]);
const alike = new Map();
for (const layer of data.layers) alike.set(layer.planned_as, (alike.get(layer.planned_as) ?? 0) + 1);
