// The wafer to scale: regions of a pipelined plan, or how one layer fills the memory of the whole fabric.
const GUTTER = 30, FRAME = 5;
// Two wafers side by side in weight streaming, one in a pipeline.
const widest = streaming ? 330 : 600, tallest = streaming ? 460 : 780;
const scale = Math.min((widest - GUTTER) / data.columns, (tallest - GUTTER) / data.rows);
const drawn = { width: data.columns * scale, height: data.rows * scale };

// The fabric with what is `inside` it, under lines at every so many PEs.
function plate(inside) {
  const picture = svg("svg", { viewBox: `0 0 ${drawn.width + GUTTER + FRAME} ${drawn.height + GUTTER + FRAME}`, preserveAspectRatio: "xMinYMin" });
  picture.style.maxWidth = `${drawn.width + GUTTER + FRAME}px`;
  const fabric = svg("g", { transform: `translate(${GUTTER} ${GUTTER})` });
  fabric.append(
    svg("rect", { class: "plate", x: -FRAME, y: -FRAME, width: drawn.width + 2 * FRAME, height: drawn.height + 2 * FRAME, rx: 7 }),
    svg("rect", { class: "fabric", width: drawn.width, height: drawn.height, fill: "none" }), inside);
  picture.append(fabric);
  for (const column of ticks(data.columns, 7)) {
    fabric.append(svg("line", { class: "plate-line", x1: column * scale, x2: column * scale, y1: 0, y2: drawn.height }));
    picture.append(svg("text", { x: GUTTER + column * scale, y: GUTTER - 11, "text-anchor": column ? "middle" : "start" }, number(column)));
  }
  for (const row of ticks(data.rows, 9).slice(1)) {
    fabric.append(svg("line", { class: "plate-line", y1: row * scale, y2: row * scale, x1: 0, x2: drawn.width }));
    picture.append(svg("text", { class: "row-tick", x: GUTTER - 9, y: GUTTER + row * scale + 4, "text-anchor": "end" }, number(row)));
  }
  return picture;
}

const highestUtilization = Math.max(0.05, Math.ceil(20 * Math.max(0, ...data.regions.map((region) => region.utilization))) / 20);
const COLOURINGS = {
  "kernel kind": (region) => KINDS[region.kind] ?? KINDS.layout,
  utilization: (region) => mix(RAMPS.utilization, region.utilization / highestUtilization),
  SRAM: (region) => mix(RAMPS.sram, region.sram / data.sram_bytes_per_pe),
};

function regionText(region) {
  return [
    region.name,
    `${number(region.width * region.height)} PEs (${region.width} × ${region.height}), ${region.kind}`,
    `${number(region.cycles)} cycles a sample, ${significant(region.rate)} samples/s`,
    `utilization ${percent(region.utilization)}`,
    `SRAM ${kib(region.sram)} of ${kib(data.sram_bytes_per_pe)}`,
  ].join("\n");
}

function drawRegions(select) {
  const shapes = data.regions.map((region, index) => mark(svg("rect", {
    class: "region", x: region.x * scale, y: region.y * scale, width: region.width * scale, height: region.height * scale,
    stroke: "var(--plate)", "stroke-width": 1.4, "data-region": region.name, "data-pes": region.width * region.height,
  }), regionText(region), () => select(index)));
  const routes = svg("g", { id: "routes" });
  const labels = svg("g", { "aria-hidden": "true" });
  for (const region of data.regions) labels.append(...regionLabel(region));
  const ring = svg("rect", { class: "ring" }), inside = svg("g", {}, ...shapes, ring, routes, labels), picture = plate(inside);
  by("wafer-drawing").append(picture);
  reachable(picture, shapes, `The wafer, ${data.columns} by ${data.rows} PEs, with ${data.regions.length} regions; arrow keys go from region to region.`);
  regionControls(shapes, routes);
  return (index) => {
    shapes.forEach((shape, at) => shape.setAttribute("aria-selected", String(at === index)));
    for (const name of ["x", "y", "width", "height"]) ring.setAttribute(name, shapes[index].getAttribute(name));
    routes.querySelectorAll("path").forEach((path) => path.classList.toggle("lit", path.dataset.ends.split(" ").includes(String(index))));
    showRegion(index);
  };
}

function regionLabel(region) {
  const width = region.width * scale, height = region.height * scale, lengthwise = height > 1.6 * width && width < 60;
  const room = Math.floor(((lengthwise ? height : width) - 10) / 6.3);
  const name = shortened(region.name, room);
  if (room < 4 || !name || (lengthwise ? width : height) < 14) return [];
  const x = region.x * scale + 6, y = region.y * scale + (lengthwise ? 6 : 14);
  const turn = lengthwise ? { transform: `rotate(90 ${x} ${y})` } : {}; // in a corner, where no route crosses it
  return [svg("text", { class: "region-label", x, y, ...turn }, name)];
}

function regionControls(shapes, routes) {
  const paint = (name) => {
    shapes.forEach((shape, index) => shape.setAttribute("fill", COLOURINGS[name](data.regions[index])));
    if (name === "kernel kind") {
      const present = new Set(data.regions.map((region) => region.kind));
      legend(by("wafer-legend"), Object.entries(KINDS).filter(([kind]) => present.has(kind)).map(([kind, colour]) => [colour, kind]));
    } else if (name === "SRAM") rampLegend(RAMPS.sram, "0", `${kib(data.sram_bytes_per_pe)} a PE`);
    else rampLegend(RAMPS.utilization, "0", `${percent(highestUtilization, 0)} of peak`);
  };
  by("wafer-controls").append(choice(Object.keys(COLOURINGS), "kernel kind", paint, "Colour by"));
  paint("kernel kind");
  if (!data.routes.length) return;
  const toggle = html("button", { type: "button", "aria-pressed": "false" }, "routes");
  toggle.addEventListener("click", () => {
    const on = toggle.getAttribute("aria-pressed") !== "true";
    toggle.setAttribute("aria-pressed", String(on));
    routes.style.display = on ? "" : "none";
  });
  routes.style.display = "none";
  drawRoutes(routes);
  by("wafer-controls").append(toggle);
}

// Routes turn once, from a column to a row, as the fabric's routers do; thicker where more bytes go.
function drawRoutes(group) {
  const most = Math.max(1, ...data.routes.map((route) => route[4]));
  const centre = (region) => [(region.x + region.width / 2) * scale, (region.y + region.height / 2) * scale];
  for (const [from, to, hops, colour, bytes] of data.routes) {
    const [[x1, y1], [x2, y2]] = [centre(data.regions[from]), centre(data.regions[to])];
    group.append(svg("path", {
      class: "route", d: `M${x1} ${y1}H${x2}V${y2}`, "data-ends": `${from} ${to}`, "data-hops": hops, "data-colour": colour,
      "stroke-width": 1 + 2.5 * Math.sqrt(bytes / most),
    }));
  }
}

function rampLegend(stops, low, high) {
  const ramp = style(html("i", { class: "ramp" }), { background: `linear-gradient(90deg, ${stops.join(", ")})` });
  by("wafer-legend").replaceChildren(html("span", {}, low, style(ramp, { width: "220px" }), high));
}

// Weight streaming: each PE holds a share of the layer, so areas are shares of memory and not places.
function shares(layer, phase) {
  const whole = data.sram_bytes_per_pe;
  const used = Math.min(layer[`${phase}_sram`], whole);
  const weights = Math.min(layer.weight_bytes / (data.columns * data.rows), used);
  return [["free", whole - used], ["weights", weights], ["activations", used - weights]];
}

function drawShares() {
  const wafers = ["forward", "backward"].map((phase) => {
    const bands = svg("g"), picture = plate(bands);
    picture.setAttribute("role", "img");
    by("wafer-drawing").append(html("div", {}, html("p", { class: "phase" }, phase), picture));
    return { phase, bands, picture };
  });
  by("wafer-drawing").classList.add("pair");
  legend(by("wafer-legend"), [["var(--activations)", "activations and buffers"], ["var(--weights)", "weights of the layer"], ["var(--free)", "free"]]);
  return (index) => {
    for (const wafer of wafers) fillWafer(wafer, data.layers[index]);
    showLayer(index);
  };
}

function fillWafer({ phase, bands, picture }, layer) {
  const parts = shares(layer, phase);
  picture.setAttribute("aria-label", `${layer.name}, ${phase}, of each PE's SRAM: ` + parts.map(([name, bytes]) => `${name} ${kib(bytes)}`).join(", "));
  let y = 0;
  bands.replaceChildren(...parts.flatMap(([name, bytes]) => {
    const height = (bytes / data.sram_bytes_per_pe) * drawn.height, top = y;
    y += height;
    return band(name, bytes, top, height);
  }));
}

function band(name, bytes, top, height) {
  if (height <= 0) return [];
  const share = bytes / data.sram_bytes_per_pe;
  const shape = svg("rect", { class: "share", "data-share": name, "data-bytes": Math.round(bytes), x: 0, y: top, width: drawn.width, height, fill: `var(--${name})` });
  shape.addEventListener("pointermove", (event) => showTip(`${name}: ${kib(bytes)} of each PE, ${percent(share)}`, event.clientX, event.clientY));
  shape.addEventListener("pointerleave", hideTip);
  if (height < 20) return [shape];
  const text = svg("text", { class: "share-label", x: 14, y: top + Math.min(24, height / 2 + 5) }, `${name}  ${percent(share)}`);
  if (height < 46) return [shape, text];
  return [shape, text, svg("text", { class: "share-label small", x: 14, y: top + 42 }, `${kib(bytes)} of each PE, ${size(bytes * data.columns * data.rows)}`)];
}
