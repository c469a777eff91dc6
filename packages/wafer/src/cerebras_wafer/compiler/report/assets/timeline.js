// Who works when: one micro-batch of weight streaming, or the filling of a pipeline.
const LANES = ["weights in", "compute", "gradients out"], LANE_HEIGHT = 34, LANE_GAP = 8, HEAD = 40, FOOT = 24;
const TOP = 22; // of the pipeline, which has no names above it
const COLOURS = { "weights in": "var(--weights)", "gradients out": "var(--gradients)", overhead: "var(--overhead)" };
const roomFor = (place) => Math.max(place.clientWidth || 1184, 320);

function axis(picture, cycles, x, width, top, bottom) {
  const perTick = ticks((1e3 * cycles) / data.clock_hz, Math.max(2, width / 110)); // milliseconds
  for (const milliseconds of perTick) {
    const at = x((milliseconds / 1e3) * data.clock_hz);
    picture.append(svg("line", { class: "axis", x1: at, x2: at, y1: top, y2: bottom }));
    picture.append(svg("text", { x: at + (milliseconds ? 0 : 1), y: bottom + 16, "text-anchor": milliseconds ? "middle" : "start" }, milliseconds ? duration(milliseconds / 1e3) : "0"));
  }
}

function drawStreaming(select) {
  const place = by("timeline-drawing");
  const whole = data.layers.reduce((sum, layer) => sum + layer.total_cycles, 0);
  let zoom = 1, current = 0, allSlots = [];
  const draw = () => {
    const [picture, slots] = streamingPicture(whole, (roomFor(place) - 4) * zoom, select);
    picture.style.width = `${100 * zoom}%`;
    place.replaceChildren(picture);
    by("step-drawing").replaceChildren(stepPicture(whole, roomFor(place) - 4));
    allSlots = slots;
    light();
  };
  const light = () => {
    for (const slot of allSlots) {
      slot.outline.style.display = slot.layer === current ? "" : "none";
      slot.shape.setAttribute("aria-selected", String(slot.layer === current));
    }
  };
  if (data.layers.length > 16) {
    by("timeline-controls").append(choice(["whole", "× 4", "× 16"], "whole", (name) => {
      zoom = { whole: 1, "× 4": 4, "× 16": 16 }[name];
      draw();
      const chosen = allSlots.find((slot) => slot.layer === current);
      place.scrollLeft = Number(chosen.outline.getAttribute("x")) - roomFor(place) / 2;
    }, "Magnify"));
  }
  legend(by("timeline-legend"), [["var(--forward)", "compute, forward"], ["var(--backward)", "compute, backward"], ["var(--weights)", "weights in"], ["var(--gradients)", "gradients out"], ["var(--overhead)", "fixed time of a layer"], ...(data.step_cycles > data.micro_batches * whole ? [["var(--accent)", "step: fixed time, waiting for input"]] : [])]);
  streamingLede(whole);
  draw();
  addEventListener("resize", draw);
  return (index) => { current = index; light(); };
}

function streamingLede(whole) {
  const sum = (pick) => data.layers.reduce((total, layer) => total + pick(layer), 0);
  const compute = sum((layer) => layer.forward_cycles + layer.backward_cycles);
  const streamed = sum((layer) => 2 * layer.weights_in_cycles + layer.gradients_out_cycles);
  const fixed = sum((layer) => layer.overhead_cycles), outside = data.step_cycles - data.micro_batches * whole;
  by("timeline-lede").textContent =
    `${cyclesTime(whole)} for ${number(data.micro_batch)} samples, ${number(data.micro_batches)} time${data.micro_batches === 1 ? "" : "s"} a step. ` +
    `The wafer computes for ${percent(compute / whole)} of it, weights and gradients stream for ${percent(streamed / whole)}, ` +
    `${percent(fixed / whole)} is the fixed time of layers. ${outside > 0 ? `${cyclesTime(outside)} of the step is in no layer: its fixed time, and waiting for the input. ` : ""}Pick a layer to see how it fills the wafer.`;
}

// The whole step above the one micro-batch that is drawn below: how often it passes, and what is in none.
function stepPicture(whole, width) {
  const left = 92, wide = width - left - 8, height = 16, count = data.micro_batches, shown = Math.min(count, 200);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height + 22}` });
  picture.append(svg("text", { class: "lane-label", x: left - 10, y: 13, "text-anchor": "end" }, "the step"));
  const layers = (whole * count * wide) / data.step_cycles, outside = data.step_cycles - whole * count;
  for (let index = 0; index < shown; index += 1) {
    picture.append(svg("rect", { class: "micro-batch", x: left + (index * layers) / shown, y: 2, width: layers / shown - gap(layers / shown), height, fill: index ? "var(--overhead)" : "var(--muted)" }));
  }
  if (outside > 0) picture.append(svg("rect", { class: "outside", x: left + layers, y: 2, width: wide - layers, height, fill: "var(--accent)" }));
  picture.append(svg("path", { class: "axis", fill: "none", d: `M${left} 19v2L${left} 36M${left + layers / shown} 19L${left + wide} 36` }));
  return picture;
}

function streamingPicture(whole, width, select) {
  const left = 92, x = (cycles) => left + (cycles / whole) * (width - left - 8);
  const bottom = HEAD + LANES.length * (LANE_HEIGHT + LANE_GAP), top = (lane) => HEAD + LANES.indexOf(lane) * (LANE_HEIGHT + LANE_GAP);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${bottom + FOOT}` });
  axis(picture, whole, x, width - left, HEAD - 20, bottom);
  for (const lane of LANES) {
    picture.append(svg("rect", { class: "lane", x: left, y: top(lane), width: width - left - 8, height: LANE_HEIGHT, rx: 3 }));
    picture.append(svg("text", { class: "lane-label", x: left - 10, y: top(lane) + LANE_HEIGHT / 2 + 4, "text-anchor": "end" }, lane));
  }
  const bounds = new Map();
  for (const [lane, layer, phase, start, end] of data.spans) {
    const y = top(lane === "overhead" ? "compute" : lane), shape = { x: x(start), width: Math.max(0.3, x(end) - x(start) - gap(x(end) - x(start))) };
    picture.append(svg("rect", { class: "span", "data-lane": lane, ...shape, y, height: LANE_HEIGHT, rx: shape.width > 6 ? 2 : 0, "shape-rendering": shape.width > 6 ? "auto" : "crispEdges", fill: COLOURS[lane] ?? `var(--${phase})` }));
    const key = `${phase} ${layer}`, known = bounds.get(key) ?? { layer, phase, start, end };
    bounds.set(key, { ...known, start: Math.min(known.start, start), end: Math.max(known.end, end) });
  }
  const slots = [...bounds.values()].sort((a, b) => a.start - b.start).map((slot) => streamingSlot(picture, slot, x, bottom, select));
  picture.append(...phaseMarks(slots, x));
  reachable(picture, slots.map((slot) => slot.shape), "One micro-batch, layer by layer, forward then backward; arrow keys go from layer to layer.");
  return [picture, slots];
}

const gap = (width) => (width > 6 ? 1 : width > 2 ? 0.4 : 0);

function streamingSlot(picture, slot, x, bottom, select) {
  const layer = data.layers[slot.layer], forward = slot.phase === "forward";
  const box = { x: x(slot.start), y: HEAD - 20, width: Math.max(0.5, x(slot.end) - x(slot.start)), height: bottom - HEAD + 16 };
  const outline = svg("rect", { class: "cursor", ...box });
  const text = [
    `${layer.name}, ${slot.phase}`,
    `compute ${cyclesTime(forward ? layer.forward_cycles : layer.backward_cycles)}`,
    `weights in ${cyclesTime(layer.weights_in_cycles)} (${size(layer.weight_bytes)})`,
    ...(forward ? [] : [`gradients out ${cyclesTime(layer.gradients_out_cycles)} (${size(layer.gradient_bytes)})`]),
    `from ${cyclesTime(slot.start)} to ${cyclesTime(slot.end)}, bound by ${layer.bound}`,
  ].join("\n");
  const shape = mark(svg("rect", { class: "slot", ...box, fill: "transparent" }), text, () => select(slot.layer));
  if (box.width > 16) {
    picture.append(svg("text", { class: "span-label", x: box.x + 4, y: HEAD - 8 }, shortened(layer.name, Math.floor((box.width - 4) / 5.9))));
  }
  picture.append(outline, shape);
  return { ...slot, shape, outline };
}

function phaseMarks(slots, x) {
  return ["forward", "backward"].flatMap((phase) => {
    const own = slots.filter((slot) => slot.phase === phase);
    if (!own.length) return [];
    const from = x(own[0].start), wide = x(own.at(-1).end) - from > 120;
    return [svg("text", { x: from + 2, y: 12 }, wide ? `${phase}, ${cyclesTime(own.at(-1).end - own[0].start)}` : phase)];
  });
}

function drawPipeline(select) {
  const place = by("timeline-drawing");
  const period = Math.max(1, ...data.regions.map((region) => region.cycles));
  const latency = Math.max(1, ...data.visits.map((visit) => visit[3]));
  const order = [...new Set(data.visits.map((visit) => visit[0]))];
  legend(by("timeline-legend"), [["var(--forward)", "a sample, forward"], ["var(--backward)", "a sample, backward"], ["var(--soft)", "busy with other samples"]]);
  const total = latency + Math.max(3 * period, latency * 0.12), entering = Math.ceil(total / period), every = Math.ceil(entering / 16);
  by("timeline-lede").textContent =
    `The first sample has passed forward and back after ${cyclesTime(latency)}: a region begins with the first part of a sample that reaches it. ` +
    `From then on one leaves every ${cyclesTime(period)} at best, the time of the slowest region. A step of ${number(data.micro_batch * data.micro_batches)} samples takes ${cyclesTime(data.step_cycles)}.${every > 1 ? ` One sample in ${number(every)} is drawn.` : ""}`;
  let shapes = [], current = 0;
  const light = () => shapes.forEach((shape, at) => shape.setAttribute("aria-selected", String(order[at] === current)));
  const draw = () => {
    const [picture, rows] = pipelinePicture({ order, period, latency, total, every, entering, width: roomFor(place) - 4, select });
    shapes = rows;
    place.replaceChildren(picture);
    light();
  };
  draw();
  addEventListener("resize", draw);
  return (index) => { current = index; light(); };
}

function pipelinePicture({ order, period, latency, total, every, entering, width, select }) {
  const height = Math.max(4, Math.min(22, 460 / order.length)), nth = Math.ceil(13 / height), left = Math.min(150, width / 4);
  const x = (cycles) => left + (cycles / total) * (width - left - 8), bottom = TOP + order.length * height;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${bottom + FOOT}` });
  axis(picture, total, x, width - left, TOP - 4, bottom);
  const row = new Map(order.map((region, index) => [region, TOP + index * height]));
  const thick = Math.max(1, height - (height > 8 ? 2 : 0.5));
  for (const region of order) {
    const from = data.visits.find((visit) => visit[0] === region)[2];
    picture.append(svg("rect", { class: "busy", x: x(from), y: row.get(region), width: x(total) - x(from), height: thick, fill: "var(--soft)", opacity: 0.35 + 0.65 * (data.regions[region].cycles / period) }));
    if (order.indexOf(region) % nth === 0) picture.append(svg("text", { x: left - 8, y: row.get(region) + height / 2 + 4, "text-anchor": "end" }, shortened(data.regions[region].name, Math.floor(left / 6.4))));
  }
  for (let sample = 0; sample < entering; sample += every) picture.append(...samplePaths(sample * period, total, x, row, thick, sample ? 0.38 : 1));
  picture.append(svg("line", { x1: x(latency), x2: x(latency), y1: 4, y2: bottom, stroke: "var(--accent)", "stroke-width": 1.5, "stroke-dasharray": "4 3" }));
  picture.append(svg("text", { x: x(latency) - 6, y: 14, "text-anchor": "end" }, "steady from here"));
  const shapes = order.map((region) => mark(svg("rect", { class: "slot", x: left, y: row.get(region), width: width - left - 8, height, fill: "transparent" }), regionText(data.regions[region]), () => select(region)));
  picture.append(...shapes);
  reachable(picture, shapes, "The pipeline, region by region; arrow keys go from region to region.");
  return [picture, shapes];
}

// Where rows are high enough, forward has their upper half and backward the lower: a region works on both at once.
function samplePaths(entry, total, x, row, thick, opacity) {
  const halves = thick >= 7;
  return ["forward", "backward"].map((phase) => {
    const parts = data.visits.filter((visit) => visit[1] === phase && visit[2] + entry < total).map(([region, , start, end]) => {
      const from = x(start + entry), wide = Math.max(0.8, x(Math.min(end + entry, total)) - from);
      const y = row.get(region) + (halves && phase === "backward" ? thick / 2 : 0);
      return `M${from.toFixed(1)} ${y.toFixed(1)}h${wide.toFixed(1)}v${(halves ? thick / 2 : thick).toFixed(1)}h${(-wide).toFixed(1)}z`;
    });
    return svg("path", { class: "sample", d: parts.join(""), fill: `var(--${phase})`, opacity });
  });
}
